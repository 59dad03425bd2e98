// Copyright: The gb10.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli/globalflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/version/verflag"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// newAPIServerCommand is Kubernetes' API server with one more option. As in K3s, one port serves the API and the joins
// of nodes, and the path of a request decides which of them answers.
func newAPIServerCommand() *cobra.Command {
	given := options.NewServerRunOptions()
	registry := given.GenericServerRunOptions.ComponentGlobalsRegistry
	joins := ""
	command := &cobra.Command{
		Use:          "kube-apiserver",
		SilenceUsage: true,
		Args:         cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			verflag.PrintAndExitIfRequested()
			if err := registry.Set(); err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(given.Logs, registry.FeatureGateFor("kube")); err != nil {
				return err
			}
			rest.SetDefaultWarningHandler(rest.NoWarnings{})
			return serveAPI(genericapiserver.SetupSignalContext(), given, joins)
		},
	}
	sets := given.Flags()
	verflag.AddFlags(sets.FlagSet("global"))
	globalflag.AddGlobalFlags(sets.FlagSet("global"), command.Name())
	for _, set := range sets.FlagSets {
		command.Flags().AddFlagSet(set)
	}
	command.Flags().StringVar(&joins, "join-socket", "", "Unix socket of the service that lets nodes join")
	return command
}

func serveAPI(ctx context.Context, given *options.ServerRunOptions, joins string) error {
	completed, err := given.Complete(ctx)
	if err != nil {
		return err
	}
	if wrong := completed.Validate(); len(wrong) > 0 {
		return utilerrors.NewAggregate(wrong)
	}
	config, err := apiserver.NewConfig(completed)
	if err != nil {
		return err
	}
	if joins != "" {
		// the aggregator's handlers are the first ones of a request, and these come before its authentication
		outer := config.Aggregator.GenericConfig
		build := outer.BuildHandlerChainFunc
		outer.BuildHandlerChainFunc = func(api http.Handler, chain *genericapiserver.Config) http.Handler {
			return withJoins(build(api, chain), joins)
		}
	}
	ready, err := config.Complete()
	if err != nil {
		return err
	}
	server, err := apiserver.CreateServerChain(ready)
	if err != nil {
		return err
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return err
	}
	return prepared.Run(ctx)
}

// withJoins hands the paths of K3s's own service to the socket, and all others to the API.
func withJoins(api http.Handler, socket string) http.Handler {
	service := &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(&url.URL{Scheme: "http", Host: "joins"})
			request.SetXForwarded()
		},
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}},
	}
	return http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		if path := request.URL.Path; path == "/cacerts" || path == "/ping" || strings.HasPrefix(path, "/v1-k3s/") {
			service.ServeHTTP(answer, request)
			return
		}
		api.ServeHTTP(answer, request)
	})
}
