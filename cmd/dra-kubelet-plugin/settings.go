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
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/sharing"
)

// settingsInterval is the poll interval of the settings file. It is mounted from a ConfigMap, which the kubelet
// updates about once a minute.
const settingsInterval = 15 * time.Second

// sharingSettings are the node's sharing settings, from a file that can change.
type sharingSettings struct {
	path, node string
	mps        bool
	report     func(error)
	changed    func()
	// asked and groupsAsked are for the setting Auto; nil if no controller says for which devices the cluster asks.
	asked       func(profile string) sharing.Placements
	groupsAsked func() sharing.Placements

	current   atomic.Pointer[sharing.Settings]
	lastData  []byte
	read      bool
	lastError string
}

// newSharingSettings reads the file, if there is one. changed is called after each change; it must not block.
func newSharingSettings(c flags.Config, report func(error), changed func()) *sharingSettings {
	s := &sharingSettings{path: c.SharingConfig, node: c.NodeName, mps: c.MPSDir != "", report: report, changed: changed}
	s.current.Store(&sharing.Settings{})
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
			s.report(&claimerror.Error{
				Reason: claimerror.InvalidParameters, Attempt: "read the sharing settings " + s.path,
				Cause: err, Remedy: "the previous settings stay in force; correct the file (chart value sharing)",
			})
		}
		return
	}
	s.lastError = ""
	for _, field := range ignored {
		klog.Background().Info("The sharing settings have an unknown field", "field", field)
	}
	s.current.Store(&parsed)
	klog.Background().Info("Sharing settings", "file", s.path, "bytes", len(data))
	s.changed()
}

// run polls the file until the context ends.
func (s *sharingSettings) run(ctx context.Context) {
	if s.path != "" {
		wait.UntilWithContext(ctx, func(context.Context) { s.reload() }, settingsInterval)
	}
}

func (s *sharingSettings) policy(g gpu.GPU, profile string) sharing.Policy {
	return s.current.Load().Policy(s.node, g, profile)
}

func (s *sharingSettings) placements(g gpu.GPU, profile string) sharing.Placements {
	return s.current.Load().Placements(s.node, g, profile, s.asked)
}

func (s *sharingSettings) groups(g gpu.GPU) sharing.Placements {
	return s.current.Load().Groups(s.node, g, s.groupsAsked)
}

func (s *sharingSettings) offer(g gpu.GPU, profile string, standing v1beta1.Strategy) (sharing.Offer, bool) {
	return sharing.OfferOf(s.policy(g, profile).With(standing), g, profile, s.mps)
}
