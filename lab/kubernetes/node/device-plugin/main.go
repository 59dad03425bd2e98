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

// standIn is the lab's part for the NVIDIA and the RDMA shared device plugins: it speaks the kubelet's real
// device plugin protocol, offers `count` units of a resource and hands the device nodes that match `devices`
// to the container that gets one. What it does not do: find GPUs or HCAs, or watch their health.
type standIn struct {
	api.UnimplementedDevicePluginServer
	count   int
	devices string
	env     string
}

func (plugin *standIn) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (plugin *standIn) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	units := make([]*api.Device, plugin.count)
	for index := range units {
		units[index] = &api.Device{ID: fmt.Sprint(index), Health: api.Healthy}
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: units}); err != nil {
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
		if plugin.devices != "" {
			nodes, err := filepath.Glob(plugin.devices)
			if err != nil {
				return nil, err
			}
			if len(nodes) == 0 {
				return nil, fmt.Errorf("no device node matches %s", plugin.devices)
			}
			for _, node := range nodes {
				given.Devices = append(given.Devices, &api.DeviceSpec{ContainerPath: node, HostPath: node, Permissions: "rw"})
			}
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
	flag.Parse()
	if !strings.Contains(*resource, "/") || *count < 1 {
		fail(fmt.Errorf("-resource needs a name as nvidia.com/gpu, -count at least 1"))
	}
	plugin := &standIn{count: *count, devices: *devices, env: *env}
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
	fmt.Printf("%s: registered %d with the kubelet\n", resource, plugin.count)
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
