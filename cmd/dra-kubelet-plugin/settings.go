// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/sharing"
)

// settingsEvery is how often the file of settings is looked at. It is mounted from a ConfigMap, which takes the kubelet a
// minute to bring anyway.
const settingsEvery = 5 * time.Second

// settings are the node's, from a file that can change.
type settings struct {
	path, node string
	mps        bool
	report     func(error)
	changed    func()

	now  atomic.Pointer[sharing.Settings]
	last []byte
	read bool
	bad  string
}

// look reads the file if it changed. One that makes no sense leaves the last one in force, and a person hears of it.
func (s *settings) look() {
	data, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) && !s.read {
		data, err = nil, nil // Not mounted yet, or optional.
	}
	if err == nil && s.read && bytes.Equal(data, s.last) {
		return
	}
	var parsed sharing.Settings
	var ignored []string
	if err == nil {
		s.last, s.read = data, true
		parsed, ignored, err = sharing.Parse(data)
	}
	if err != nil {
		if s.bad != err.Error() {
			s.bad = err.Error()
			s.report(&claimerror.Error{
				Reason: claimerror.InvalidParameters, Attempt: "read the sharing settings " + s.path,
				Cause: err, Remedy: "the last good settings stay in force; correct the file (chart value sharing)",
			})
		}
		return
	}
	s.bad = ""
	for _, field := range ignored {
		klog.Background().Info("A field of the sharing settings means nothing to this driver", "field", field)
	}
	s.now.Store(&parsed)
	klog.Background().Info("Sharing settings", "file", s.path, "bytes", len(data))
	s.changed()
}

// watch looks at the file at intervals until the context ends.
func (s *settings) watch(ctx context.Context) {
	if s.path == "" {
		return
	}
	ticker := time.NewTicker(settingsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.look()
		}
	}
}

// policy is what they say of a GPU, or of a MIG profile of it.
func (s *settings) policy(g gpu.GPU, profile string) sharing.Policy {
	now := s.now.Load()
	switch {
	case now == nil:
		return sharing.Policy{}
	case profile != "":
		return now.MIG(s.node, g, profile)
	}
	return now.GPU(s.node, g)
}

// offer is what can be had in shares.
func (s *settings) offer(g gpu.GPU, profile string) (sharing.Offer, bool) {
	return sharing.OfferOf(s.policy(g, profile), g, profile, s.mps)
}

// noMPS says why the node has none.
func noMPS(dir string) string {
	if dir != "" {
		return ""
	}
	return "MPS is not switched on on this node (--mps-dir is empty; chart value mps.enabled)"
}
