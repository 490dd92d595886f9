// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
)

// Cadence is how often Watch looks. Zero values are the defaults.
type Cadence struct {
	// Glance is the interval of the cheap look at files. Default 2 s.
	Glance time.Duration
	// Full is the number of glances after which NVML is asked though no file changed, since none shows a GPU that is
	// lost. Default 15.
	Full int
}

// Watch calls found at the start, and again whenever the Snapshot or the reason for its absence changed, until the
// context ends. It returns the context's error. found runs in Watch's goroutine: the next look waits for it.
//
// A look that fails although there is a driver says nothing about the GPUs: found gets the last Snapshot with the
// error, so that one hiccup of NVML does not withdraw a node's devices. Where there is no driver, or another one than
// this process can speak to, the Snapshot is zero. While looks fail, each glance is a full look.
func (i *Inventory) Watch(ctx context.Context, c Cadence, found func(gpu.Snapshot, error)) error {
	if c.Glance <= 0 {
		c.Glance = 2 * time.Second
	}
	if c.Full <= 0 {
		c.Full = 15
	}
	ticks, stop := i.o.Tick(c.Glance)
	defer stop()

	var last sighting
	for {
		last.files = i.files() // before the look: a change during it shows at the next glance
		now := i.sight(ctx, last)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !last.delivered || !now.same(last) {
			found(now.snapshot, now.err)
		}
		last = now
		if err := i.wait(ctx, ticks, c.Full, last); err != nil {
			return err
		}
	}
}

// Kick makes Watch look now, or again after the look under way. It never waits.
func (i *Inventory) Kick() {
	select {
	case i.kick <- struct{}{}:
	default:
	}
}

// sighting is one look and the files it was prompted by.
type sighting struct {
	files     string
	snapshot  gpu.Snapshot
	err       error
	delivered bool
}

func (i *Inventory) sight(ctx context.Context, last sighting) sighting {
	now := sighting{files: last.files, delivered: true}
	now.snapshot, now.err = i.Look(ctx)
	gone := errors.Is(now.err, ErrNoDriver) || errors.Is(now.err, nvml.ErrReplaced) || errors.Is(now.err, nvml.LibRMMismatch)
	if now.err != nil && !gone {
		now.snapshot = last.snapshot
	}
	return now
}

func (s sighting) same(o sighting) bool {
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	return text(s.err) == text(o.err) && reflect.DeepEqual(s.snapshot, o.snapshot)
}

// wait returns when a full look is due.
func (i *Inventory) wait(ctx context.Context, ticks <-chan time.Time, full int, last sighting) error {
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-i.kick:
			return nil
		case <-ticks:
			if n >= full || last.err != nil || i.files() != last.files {
				return nil
			}
		}
	}
}

var nodeForm = regexp.MustCompile(`^nvidia(\d+|ctl|-uvm)$`)

// files is what the cheap look sees: the loaded driver, the GPUs it is bound to, the device nodes, and MIG
// instances. Under /proc only
// contents count; its times are those of the reading.
func (i *Inventory) files() string {
	var b strings.Builder
	version, _ := os.ReadFile(filepath.Join(i.o.ProcRoot, "driver/nvidia/version"))
	b.Write(version)
	gpus, _ := os.ReadDir(filepath.Join(i.o.ProcRoot, "driver/nvidia/gpus"))
	for _, e := range gpus {
		b.WriteString("\n" + e.Name())
	}
	nodes, _ := os.ReadDir(filepath.Join(i.o.DevRoot, "dev"))
	for _, e := range nodes {
		if nodeForm.MatchString(e.Name()) {
			b.WriteString("\n" + e.Name())
		}
	}
	// Partitions that somebody makes or destroys show as directories of the kernel's capabilities.
	for _, pattern := range []string{"gi*", "gi*/ci*"} {
		instances, _ := filepath.Glob(filepath.Join(i.o.ProcRoot, "driver/nvidia/capabilities/gpu*/mig", pattern))
		for _, dir := range instances {
			b.WriteString("\n" + strings.TrimPrefix(dir, i.o.ProcRoot))
		}
	}
	return b.String()
}
