// Copyright: The gb10.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// kine serves a SQLite database with etcd's protocol, or copies all its keys into an etcd. K3s contains the same code
// with SQLite in C; here SQLite is translated to Go, so that no C compiler is needed.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/sqlite"
	kineserver "github.com/k3s-io/kine/pkg/server"
	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// What kine v0.16 and etcd's server use by default; the API server looks for watch progress in the version.
const (
	emulatedEtcd  = "3.6.11"
	notifyEvery   = 5 * time.Second
	rowsAtOnce    = 500
	pingsAtLeast  = 5 * time.Second
	largestObject = 2 << 20
)

func main() {
	database := flag.String("database", "", "file of the database")
	socket := flag.String("socket", "", "Unix socket to serve it at")
	target := flag.String("copy-to", "", "etcd to copy all keys to, instead of serving them")
	cert := flag.String("cert", "", "client certificate for that etcd")
	key := flag.String("key", "", "client key")
	ca := flag.String("cacert", "", "authority of the etcd's certificate")
	flag.Parse()
	logrus.SetLevel(logrus.WarnLevel)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var err error
	if *target != "" {
		err = copyDatabase(ctx, *database, *target, transport.TLSInfo{CertFile: *cert, KeyFile: *key, TrustedCAFile: *ca})
	} else {
		err = serveDatabase(ctx, *database, *socket)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "kine: %v\n", err)
		os.Exit(1)
	}
}

func openDatabase(ctx context.Context, file string) (kineserver.Backend, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	config := &drivers.Config{
		DataSourceName:   file + "?" + sqlite.DefaultParams,
		PollBatchSize:    rowsAtOnce,
		CompactBatchSize: rowsAtOnce,
		CompactTimeout:   5 * time.Second,
	}
	_, backend, err := sqlite.New(ctx, new(sync.WaitGroup), config)
	if err != nil {
		return nil, err
	}
	return backend, backend.Start(ctx)
}

func serveDatabase(ctx context.Context, file, socket string) error {
	backend, err := openDatabase(ctx, file)
	if err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAtLeast}),
		grpc.MaxRecvMsgSize(largestObject),
	)
	kineserver.New(backend, "unix", notifyEvery, emulatedEtcd).Register(server)
	context.AfterFunc(ctx, server.Stop)
	return server.Serve(listener)
}

func copyDatabase(ctx context.Context, file, target string, access transport.TLSInfo) error {
	tls, err := access.ClientConfig()
	if err != nil {
		return err
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{target}, TLS: tls, DialTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer etcd.Close()
	backend, err := openDatabase(ctx, file)
	if err != nil {
		return err
	}
	_, pairs, err := backend.List(ctx, "/", "0", 0, 0, false)
	if err != nil {
		return err
	}
	for _, pair := range pairs {
		if _, err := etcd.Put(ctx, pair.Key, string(pair.Value)); err != nil {
			return err
		}
	}
	return nil
}
