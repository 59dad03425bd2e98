// Copyright: The gb10.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Network-policies enforces NetworkPolicies on one node with the controller that K3s contains: kube-router's, in K3s's
// fork. In K3s it runs inside the k3s process. It needs the programs iptables and ipset.
package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/utils"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "credentials of this node's controller")
	node := flag.String("node", "", "name of this node")
	services := flag.String("service-cidr", "", "network of the services")
	flag.Parse()
	if err := run(*kubeconfig, *node, *services); err != nil {
		klog.Fatal(err)
	}
}

func run(kubeconfig, node, services string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	// The controller reads the node once, when it is created, and fails without its address.
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		_, found := utils.GetNodeObject(client, node)
		return found == nil, nil
	})
	if err != nil {
		return err
	}

	config := options.NewKubeRouterConfig()
	config.EnableIPv4, config.EnableIPv6 = true, false
	config.HostnameOverride = node
	config.ClusterIPCIDRs = []string{services}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	spaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	tables, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	// nil: it asks the kernel for the node's interfaces.
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, spaces, &sync.Mutex{},
		nil, tables, sets)
	if err != nil {
		return err
	}
	if _, err = pods.AddEventHandler(controller.PodEventHandler); err != nil {
		return err
	}
	if _, err = spaces.AddEventHandler(controller.NamespaceEventHandler); err != nil {
		return err
	}
	if _, err = policies.AddEventHandler(controller.NetworkPolicyEventHandler); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	// The controller reports each sync. Nobody asks here, but an unread channel would block it.
	heartbeats := make(chan *healthcheck.ControllerHeartbeat, 1)
	go func() {
		for range heartbeats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	controller.Run(heartbeats, ctx.Done(), &running)
	running.Wait()
	return nil
}
