// Copyright: The gb10.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

//go:build etcd

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/etcdserver/cindex"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// restoreSnapshot makes the data directory of a new cluster of one member from a snapshot: etcd keeps its members
// in the database, so the old ones are taken out and this one is put in, in the database and in a log of its own.
// It prints the value of the key show.
func restoreSnapshot(snapshot, name, peer, directory, show string) error {
	log := zap.NewNop()
	database := filepath.Join(directory, "member", "snap", "db")
	if err := os.MkdirAll(filepath.Dir(database), 0o700); err != nil {
		return err
	}
	if err := copyVerified(snapshot, database); err != nil {
		return err
	}
	urls, err := types.NewURLsMap(name + "=" + peer)
	if err != nil {
		return err
	}
	cluster, err := membership.NewClusterFromURLsMap(log, "etcd-cluster", urls)
	if err != nil {
		return err
	}
	store := backend.NewDefaultBackend(log, database)
	defer store.Close()
	if err = printKey(log, store, show); err != nil {
		return err
	}
	members := schema.NewMembershipBackend(log, store)
	if err = members.TrimMembershipFromBackend(); err != nil {
		return err
	}
	cluster.SetBackend(members)
	for _, member := range cluster.Members() {
		cluster.AddMember(member, true)
	}
	self := cluster.MemberByName(name)
	metadata, err := (&etcdserverpb.Metadata{NodeID: uint64(self.ID), ClusterID: uint64(cluster.ID())}).Marshal()
	if err != nil {
		return err
	}
	journal, err := wal.Create(log, filepath.Join(directory, "member", "wal"), metadata)
	if err != nil {
		return err
	}
	defer journal.Close()
	description, err := json.Marshal(self)
	if err != nil {
		return err
	}
	joining := raftpb.ConfChange{Type: raftpb.ConfChangeAddNode, NodeID: uint64(self.ID), Context: description}
	change, err := joining.Marshal()
	if err != nil {
		return err
	}
	const index, term = uint64(1), uint64(1)
	entries := []raftpb.Entry{{Type: raftpb.EntryConfChange, Term: term, Index: index, Data: change}}
	if err = journal.Save(raftpb.HardState{Term: term, Vote: uint64(self.ID), Commit: index}, entries); err != nil {
		return err
	}
	voters := raftpb.ConfState{Voters: []uint64{uint64(self.ID)}}
	schema.MustUnsafeSaveConfStateToBackend(log, store.BatchTx(), &voters)
	raftSnapshot := raftpb.Snapshot{
		Data:     etcdserver.GetMembershipInfoInV2Format(log, cluster),
		Metadata: raftpb.SnapshotMetadata{Index: index, Term: term, ConfState: voters},
	}
	if err = snap.New(log, filepath.Join(directory, "member", "snap")).SaveSnap(raftSnapshot); err != nil {
		return err
	}
	if err = journal.SaveSnapshot(walpb.Snapshot{Index: index, Term: term, ConfState: &voters}); err != nil {
		return err
	}
	cindex.UpdateConsistentIndexForce(store.BatchTx(), index, term)
	return nil
}

func printKey(log *zap.Logger, store backend.Backend, key string) error {
	keys := mvcc.NewStore(log, store, &lease.FakeLessor{}, mvcc.StoreConfig{})
	defer keys.Close()
	found, err := keys.Range(context.Background(), []byte(key), nil, mvcc.RangeOptions{})
	if err != nil {
		return err
	}
	if len(found.KVs) == 0 {
		return errors.New("the snapshot does not have the key " + key + ": it was saved with another token")
	}
	_, err = os.Stdout.Write(found.KVs[0].Value)
	return err
}

// A snapshot ends in the hash of all before it.
func copyVerified(snapshot, database string) error {
	content, err := os.ReadFile(snapshot)
	if err != nil {
		return err
	}
	if len(content)%512 != sha256.Size {
		return errors.New("not a snapshot of etcd: it does not end in a checksum")
	}
	body, sum := content[:len(content)-sha256.Size], content[len(content)-sha256.Size:]
	if actual := sha256.Sum256(body); !bytes.Equal(actual[:], sum) {
		return errors.New("the snapshot is damaged: its checksum differs")
	}
	return os.WriteFile(database, body, 0o600)
}
