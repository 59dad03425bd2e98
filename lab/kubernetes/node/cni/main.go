// Copyright: The gb10.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Cni is the one program behind all CNI plugins of K3s: the name by which it is called says which plugin runs. The
// packages under this directory exist only during the build, see lab/kubernetes/cni_plugins.py.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"gb10.cluster/lab/kubernetes/node/cni/bandwidth"
	"gb10.cluster/lab/kubernetes/node/cni/bridge"
	"gb10.cluster/lab/kubernetes/node/cni/firewall"
	"gb10.cluster/lab/kubernetes/node/cni/flannel"
	"gb10.cluster/lab/kubernetes/node/cni/hostlocal"
	"gb10.cluster/lab/kubernetes/node/cni/loopback"
	"gb10.cluster/lab/kubernetes/node/cni/portmap"
)

var plugins = map[string]func(){
	"bandwidth":  bandwidth.Main,
	"bridge":     bridge.Main,
	"firewall":   firewall.Main,
	"flannel":    flannel.Main,
	"host-local": hostlocal.Main,
	"loopback":   loopback.Main,
	"portmap":    portmap.Main,
}

func main() {
	name := filepath.Base(os.Args[0])
	plugin, found := plugins[name]
	if !found {
		fmt.Fprintf(os.Stderr, "%s is none of the CNI plugins in this program\n", name)
		os.Exit(1)
	}
	plugin()
}
