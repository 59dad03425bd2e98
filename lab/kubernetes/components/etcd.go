// Copyright: The gb10.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

//go:build etcd

package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

// Other lines of Kubernetes need other releases of etcd's modules, whose interfaces differ. Their builds leave etcd
// out, without this tag, and they get the program of the default release.
func init() {
	components["etcd"] = func() { etcdmain.Main(os.Args) }
	components["etcd-snapshot"] = etcdSnapshot
}
