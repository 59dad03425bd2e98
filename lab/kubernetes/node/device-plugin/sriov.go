// Copyright: The gb10.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// resource is what the stand-in understands of the SR-IOV device plugin's configuration; its selectors of vendors and
// RDMA are true of every VF in the lab.
type resource struct {
	ResourcePrefix string
	ResourceName   string
	Selectors      []struct{ PfNames []string }
}

// serveVFs offers every resource of the configuration: units are PCI addresses, which Multus hands to host-device.
func serveVFs(config, sysfs, directory string) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var wanted struct{ ResourceList []resource }
	if err := json.Unmarshal(text, &wanted); err != nil {
		return err
	}
	failed := make(chan error)
	for _, entry := range wanted.ResourceList {
		plugin, err := entry.find(sysfs)
		if err != nil {
			return err
		}
		go func() {
			for {
				if err := plugin.serve(entry.ResourcePrefix+"/"+entry.ResourceName, directory); err != nil {
					failed <- err
				}
			}
		}()
	}
	return <-failed
}

// find looks for VFs by the names of their PFs and their numbers: `enp1s0f0np0#0-0` is the first.
func (wanted resource) find(sysfs string) (*standIn, error) {
	found := &standIn{nodes: map[string][]string{}, env: "PCIDEVICE_" + strings.ToUpper(wanted.ResourceName)}
	for _, selector := range wanted.Selectors {
		for _, name := range selector.PfNames {
			pf, numbers, _ := strings.Cut(name, "#")
			var first, last int
			if _, err := fmt.Sscanf(numbers, "%d-%d", &first, &last); err != nil {
				return nil, fmt.Errorf("pfNames %q: %w", name, err)
			}
			for number := first; number <= last; number++ {
				device := filepath.Join(sysfs, "class/net", pf, "device", fmt.Sprintf("virtfn%d", number))
				target, err := filepath.EvalSymlinks(device)
				if err != nil {
					continue // this node has no such VF
				}
				unit := filepath.Base(target)
				found.units = append(found.units, unit)
				found.nodes[unit] = append(verbs(sysfs, target), "/dev/infiniband/rdma_cm")
			}
		}
	}
	return found, nil
}

// verbs returns the device nodes of the RDMA devices of a PCI function.
func verbs(sysfs, function string) []string {
	var nodes []string
	names, _ := filepath.Glob(filepath.Join(sysfs, "class/infiniband_verbs/*/ibdev"))
	for _, name := range names {
		device, _ := os.ReadFile(name)
		if _, err := os.Stat(filepath.Join(function, "infiniband", strings.TrimSpace(string(device)))); err == nil {
			nodes = append(nodes, "/dev/infiniband/"+filepath.Base(filepath.Dir(name)))
		}
	}
	return nodes
}
