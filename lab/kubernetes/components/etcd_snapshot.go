// Copyright: The gb10.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

//go:build etcd

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcdSnapshot saves a consistent copy of the database, makes a new cluster from one, stores a key, or adds a member.
func etcdSnapshot() {
	endpoint := flag.String("endpoint", "https://127.0.0.1:2379", "etcd to talk to")
	cert := flag.String("cert", "", "client certificate")
	key := flag.String("key", "", "client key")
	ca := flag.String("cacert", "", "authority of the server's certificate")
	save := flag.String("save", "", "file that the snapshot is written to")
	add := flag.String("add", "", "peer address of a member to add; prints the initial cluster for it")
	name := flag.String("name", "", "name of the member to add")
	put := flag.String("put", "", "key whose value is read from standard input")
	restore := flag.String("restore", "", "snapshot to make the data directory of a cluster of one from")
	directory := flag.String("directory", "", "that data directory")
	show := flag.String("show", "", "key of the snapshot whose value is printed; without it nothing is restored")
	flag.Parse()
	if *restore != "" {
		fail(restoreSnapshot(*restore, *name, *add, *directory, *show))
		return
	}

	tls, err := transport.TLSInfo{CertFile: *cert, KeyFile: *key, TrustedCAFile: *ca}.ClientConfig()
	fail(err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{*endpoint}, TLS: tls, DialTimeout: 10 * time.Second})
	fail(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch {
	case *save != "":
		fail(saveSnapshot(ctx, client, *save))
	case *put != "":
		fail(putKey(ctx, client, *put))
	case *add != "":
		fail(addMember(ctx, client, *name, *add))
	default:
		fail(fmt.Errorf("say what to do: -save FILE, -put KEY or -add ADDRESS"))
	}
}

func saveSnapshot(ctx context.Context, client *clientv3.Client, path string) error {
	stream, err := client.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	part := path + ".part"
	file, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(file, stream); err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(part, path)
}

func putKey(ctx context.Context, client *clientv3.Client, key string) error {
	value, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	_, err = client.Put(ctx, key, string(value))
	return err
}

// A member may be there already when its host was stopped between being added and being started.
func addMember(ctx context.Context, client *clientv3.Client, name, peer string) error {
	members, err := client.MemberList(ctx)
	if err != nil {
		return err
	}
	listed := members.Members
	known := false
	for _, member := range listed {
		known = known || member.PeerURLs[0] == peer
	}
	if !known {
		added, err := client.MemberAdd(ctx, []string{peer})
		if err != nil {
			return err
		}
		listed = added.Members
	}
	separator := ""
	for _, member := range listed {
		label := member.Name
		if member.PeerURLs[0] == peer {
			label = name
		}
		fmt.Printf("%s%s=%s", separator, label, member.PeerURLs[0])
		separator = ","
	}
	fmt.Println()
	return nil
}
