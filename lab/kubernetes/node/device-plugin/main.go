// Copyright: The gb10.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// standIn is the lab's part for the NVIDIA, the RDMA shared and the SR-IOV device plugins: it speaks the kubelet's
// real device plugin protocol, offers the units of a resource and hands their device nodes to the container that gets
// one: those that match `devices`, and those that `nodes` lists for a unit. What it does not do: find GPUs or HCAs, or
// watch their health.
type standIn struct {
	api.UnimplementedDevicePluginServer
	units   []string
	devices string
	nodes   map[string][]string
	env     string
}

func (plugin *standIn) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (plugin *standIn) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	offered := make([]*api.Device, len(plugin.units))
	for index, unit := range plugin.units {
		offered[index] = &api.Device{ID: unit, Health: api.Healthy}
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: offered}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (plugin *standIn) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		given := &api.ContainerAllocateResponse{}
		if plugin.env != "" {
			given.Envs = map[string]string{plugin.env: strings.Join(container.DevicesIds, ",")}
		}
		var nodes []string
		if plugin.devices != "" {
			matching, err := filepath.Glob(plugin.devices)
			if err != nil {
				return nil, err
			}
			if len(matching) == 0 {
				return nil, fmt.Errorf("no device node matches %s", plugin.devices)
			}
			nodes = matching
		}
		for _, unit := range container.DevicesIds {
			nodes = append(nodes, plugin.nodes[unit]...)
		}
		for _, node := range nodes {
			given.Devices = append(given.Devices, &api.DeviceSpec{ContainerPath: node, HostPath: node, Permissions: "rw"})
		}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

func main() {
	resource := flag.String("resource", "", "resource name, for example nvidia.com/gpu")
	count := flag.Int("count", 1, "units offered")
	devices := flag.String("devices", "", "pattern of the device nodes handed over with one unit")
	env := flag.String("env", "", "environment variable that lists the units of a container")
	directory := flag.String("directory", "/var/lib/kubelet/device-plugins", "where the kubelet listens")
	sriov := flag.String("sriov-config", "", "offer VFs as this configuration of the SR-IOV device plugin says")
	sysfs := flag.String("sysfs", "/sys", "where VFs are looked for")
	flag.Parse()
	if *sriov != "" {
		fail(serveVFs(*sriov, *sysfs, *directory))
	}
	if !strings.Contains(*resource, "/") || *count < 1 {
		fail(fmt.Errorf("-resource needs a name as nvidia.com/gpu, -count at least 1"))
	}
	units := make([]string, *count)
	for index := range units {
		units[index] = fmt.Sprint(index)
	}
	plugin := &standIn{units: units, devices: *devices, env: *env}
	for {
		fail(plugin.serve(*resource, *directory))
	}
}

// serve returns when the kubelet was restarted: it empties the directory, and plugins must register again.
func (plugin *standIn) serve(resource, directory string) error {
	socket := filepath.Join(directory, "gb10-"+strings.NewReplacer("/", "-", ".", "-").Replace(resource)+".sock")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, plugin)
	go server.Serve(listener) //nolint:errcheck // ends with Stop below
	defer server.Stop()
	for {
		if err = register(resource, socket, directory); err == nil {
			break
		}
		fmt.Fprintf(os.Stderr, "%s: waiting for the kubelet: %v\n", resource, err)
		time.Sleep(time.Second)
	}
	fmt.Printf("%s: registered %d with the kubelet\n", resource, len(plugin.units))
	for {
		if _, err := os.Stat(socket); err != nil {
			return nil
		}
		time.Sleep(time.Second)
	}
}

func register(resource, socket, directory string) error {
	connection, err := grpc.NewClient("unix://"+filepath.Join(directory, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(socket), ResourceName: resource, Options: &api.DevicePluginOptions{}})
	return err
}

func fail(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "device-plugin: %v\n", err)
		os.Exit(1)
	}
}
