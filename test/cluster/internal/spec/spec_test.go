// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSave_Spec_LoadedEqual(t *testing.T) {
	want := Spec{ID: "1", Dir: t.TempDir(), Kubernetes: "v1.37.1", FeatureGates: []string{"A=true"}, Bins: []string{"/b"}, Port: 7}
	if err := want.Save(); err != nil {
		t.Fatal(err)
	}
	got, err := Load(want.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestOn_EachNode_SharesNoPath(t *testing.T) {
	s := Spec{ID: "1", Dir: "/state", Nodes: MaxNodes}
	owner := map[string]int{}
	for _, number := range s.Members() {
		m := s.On(number)
		for _, name := range []string{
			m.NodeName(), m.NodeIP(), m.PodRange(), m.Bridge(), m.Cgroup(), m.Node("kubelet"), m.Log("kubelet"),
			m.Conf("kubelet.yaml"), m.ControlDir(), m.PKI(m.KubeletIdentity()), fmt.Sprint(m.KubeletPort()), fmt.Sprint(m.KubeletHealthPort()),
		} {
			if other, ok := owner[name]; ok {
				t.Errorf("%s is of node %d and of node %d", name, other, number)
			}
			owner[name] = number
		}
	}
	if first := s.On(1); first.NodeName() != "onenode" || first.Cgroup() != "onenode-1" || first.Node() != "/state/node" {
		t.Errorf("the first node is named differently in a cluster of several: %+v", first)
	}
}

func TestLoad_MissingOrDamaged_DifferentErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, ErrNoCluster) {
		t.Errorf("empty directory: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, File), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || errors.Is(err, ErrNoCluster) {
		t.Errorf("damaged file: %v", err)
	}
}

func TestLock_Held_SecondFailsUntilReleased(t *testing.T) {
	dir := t.TempDir()
	lock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); !errors.Is(err, ErrUp) {
		t.Errorf("second lock: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := WaitGone(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait while held: %v", err)
	}
	// The holder removes the directory before it releases the lock.
	waited := make(chan error, 1)
	ready, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	go func() { waited <- WaitGone(context.Background(), dir) }()
	lock.Close()
	if err := <-waited; err != nil {
		t.Errorf("wait after release: %v", err)
	}
	again, err := Lock(dir)
	if err != nil {
		t.Fatalf("lock after release: %v", err)
	}
	again.Close()
}
