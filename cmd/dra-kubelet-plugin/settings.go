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

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// settingsInterval is the poll interval of the settings file. It is mounted from a ConfigMap, which the kubelet
// updates about once a minute.
const settingsInterval = 15 * time.Second

// sharingSettings are the node's sharing settings, from a file that can change.
type sharingSettings struct {
	path    string
	reports notify.Reporter
	changed notify.Trigger
	// asked is nil if no controller says for which devices the cluster asks.
	asked follower

	current   atomic.Pointer[sharing.Node]
	lastData  []byte
	read      bool
	lastError string
	// valid means that a file was in force.
	valid bool
}

// follower follows what the cluster asks for.
type follower interface {
	sharing.Demand
	Run(ctx context.Context)
}

// newSharingSettings reads the file, if there is one. It fires changed after each change.
func newSharingSettings(
	c flags.Config, reports notify.Reporter, changed notify.Trigger, asked follower,
) *sharingSettings {
	s := &sharingSettings{path: c.SharingConfig, reports: reports, changed: changed, asked: asked}
	first := sharing.Node{Name: c.NodeName, MPS: c.MPSDir != "", Demand: asked}
	s.current.Store(&first)
	if s.path != "" {
		s.reload()
	}
	return s
}

// reload reads a changed file. If it is invalid, the previous settings stay in force, and an error is reported.
func (s *sharingSettings) reload() {
	data, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) && s.lastData == nil {
		data, err = nil, nil // Not mounted yet, or optional.
	}
	if err == nil && s.read && bytes.Equal(data, s.lastData) {
		return
	}
	var parsed sharing.Settings
	var ignored []string
	if err == nil {
		s.lastData, s.read = data, true
		parsed, ignored, err = sharing.Parse(data)
	}
	if err != nil {
		if s.lastError != err.Error() {
			s.lastError = err.Error()
			effect := "the previous settings stay in force"
			if !s.valid {
				effect = "until then each device is for one claim"
			}
			s.reports.Report(&claimerror.Error{
				Reason: claimerror.InvalidParameters, Attempt: "read the sharing settings " + s.path,
				Cause: err, Remedy: effect + "; correct the file (chart value sharing)",
			})
		}
		return
	}
	s.lastError, s.valid = "", true
	for _, field := range ignored {
		klog.Background().Info("The sharing settings have an unknown field", "field", field)
	}
	next := *s.current.Load()
	next.Settings = parsed
	s.current.Store(&next)
	klog.Background().Info("Sharing settings", "file", s.path, "bytes", len(data))
	s.changed.Fire()
}

// Run polls the file until the context ends.
func (s *sharingSettings) Run(ctx context.Context) {
	if s.path != "" {
		wait.UntilWithContext(ctx, func(context.Context) { s.reload() }, settingsInterval)
	}
}

// Policy implements sharing.Source.
func (s *sharingSettings) Policy(g gpu.GPU, profile string) sharing.Policy {
	return s.current.Load().Policy(g, profile)
}

// Placements implements sharing.Source.
func (s *sharingSettings) Placements(g gpu.GPU, profile string) sharing.Placements {
	return s.current.Load().Placements(g, profile)
}

// Groups implements sharing.Source.
func (s *sharingSettings) Groups(g gpu.GPU) sharing.Placements { return s.current.Load().Groups(g) }

// Monitors implements sharing.Source.
func (s *sharingSettings) Monitors(g gpu.GPU) sharing.Placements { return s.current.Load().Monitors(g) }

// Shares implements sharing.Source.
func (s *sharingSettings) Shares(g gpu.GPU, profile string) sharing.Placements {
	return s.current.Load().Shares(g, profile)
}

// Offer implements sharing.Source.
func (s *sharingSettings) Offer(g gpu.GPU, profile string, standing v1beta1.Strategy) (sharing.Offer, bool) {
	return s.current.Load().Offer(g, profile, standing)
}
