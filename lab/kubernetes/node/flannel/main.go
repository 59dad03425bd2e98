// Copyright: The gb10.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Flannel gives the pods of one node their network with the VXLAN backend of flannel, as K3s does in its own process:
// the device flannel.1, the routes, the rules of iptables, and the file that the CNI plugin reads.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"k8s.io/klog/v2"
)

const (
	prefix     = "flannel.alpha.coreos.com"
	subnetFile = "/run/flannel/subnet.env"
	resync     = 60 // seconds, as in K3s
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "credentials of this node's controller")
	node := flag.String("node", "", "name of this node, which has a podCIDR")
	config := flag.String("config", "", "net-conf.json")
	iface := flag.String("iface", "", "name or address of the interface between the nodes")
	flag.Parse()
	if err := run(*kubeconfig, *node, *config, *iface); err != nil && !errors.Is(err, context.Canceled) {
		klog.Fatal(err)
	}
}

func run(kubeconfig, node, config, iface string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := os.Setenv("NODE_NAME", node); err != nil {
		return err
	}
	manager, err := kube.NewSubnetManager(ctx, "", kubeconfig, prefix, config, false)
	if err != nil {
		return err
	}
	network, err := manager.GetNetworkConfig(ctx)
	if err != nil {
		return err
	}
	family, err := ipmatch.GetIPFamily(network.EnableIPv4, network.EnableIPv6)
	if err != nil {
		return err
	}
	external, err := ipmatch.LookupExtIface(iface, "", "", family, ipmatch.PublicIPOpts{})
	if err != nil {
		return err
	}
	chosen, err := backend.NewManager(ctx, manager, external).GetBackend(network.BackendType)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	registered, err := chosen.RegisterNetwork(ctx, &running, network)
	if err != nil {
		return err
	}
	lease := registered.Lease()
	rules := &iptables.IPTablesManager{}
	if err = rules.Init(ctx); err != nil {
		return err
	}
	none4, none6 := ip.IP4Net{}, ip.IP6Net{}
	err = rules.SetupAndEnsureMasqRules(ctx, network.Network, none4, none4, network.IPv6Network, none6, none6, lease,
		resync, false)
	if err != nil {
		return err
	}
	// Docker leaves the policy of the chain FORWARD at DROP.
	rules.SetupAndEnsureForwardRules(ctx, network.Network, network.IPv6Network, resync)
	err = manager.HandleSubnetFile(subnetFile, network, true, lease.Subnet, lease.IPv6Subnet, registered.MTU())
	if err != nil {
		return err
	}
	registered.Run(ctx)
	return nil
}
