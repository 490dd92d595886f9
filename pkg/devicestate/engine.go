// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package devicestate prepares and unprepares claims, and finds after any crash what it had been doing.
//
// The protocol. A claim is worked on under its own lock, then under the locks of the physical GPUs it takes for itself,
// in order; all hold across processes. Prepare: plan, refuse overlap, intent record (where an effect could be
// stranded), effects, CDI spec, commit record, answer. Unprepare: releasing record, spec removed, effects reverted in
// reverse, record removed. Whatever the moment of death, Recover finds a record that says what may exist.
//
// Traps. An answer before the commit promises what a crash forgets. A spec removed after the effects lets a container
// start on what is being taken apart. The notes in a GPU's lock file only say where to look: the records decide.
package devicestate

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
	"gpu-dra-driver/pkg/sharing"
)

// Edits gives what a container needs to use a GPU, read from the driver root.
type Edits interface {
	// Common is what every container with a GPU gets.
	Common(ctx context.Context) (specs.ContainerEdits, error)
	// GPU is what a container gets for one GPU.
	GPU(ctx context.Context, device plan.Device) (specs.ContainerEdits, error)
}

// Executor carries out steps of one kind. The lock of the step's GPU is held whenever it is called; steps of different
// GPUs run at once. A method writes nothing of the devices but the one of its step. Check does not see other claims.
type Executor interface {
	// Admit says what the step is to be on the GPU as it is, before anything is recorded or changed: an effect that is
	// there already and that no record owns is foreign, and Revert will never take it away. An error refuses the claim.
	Admit(ctx context.Context, w plan.Work) error
	// Apply makes the step's effect exist, and notes in devices what of it belongs to this boot. One that exists as
	// noted is a success. An error that is plan.ErrUnchanged changed nothing.
	Apply(ctx context.Context, w plan.Work) error
	// Check says whether the effect is there as noted. It changes nothing.
	Check(ctx context.Context, w plan.Work) error
	// Revert makes it not exist, whatever Apply came to; one that is gone, or whose GPU is, is a success. An effect that
	// another claim has a share of stays, for that claim's Revert.
	Revert(ctx context.Context, w plan.Work) error
}

// Options configures an Engine. All fields but Planner, Policy, NoMPS and MPSDir are required.
type Options struct {
	Host *host.Host
	// Dir holds records and locks. It must outlive the plugin and be on a real disk.
	Dir    string
	Specs  *store.Store
	Driver string
	Pool   string
	// Snapshot gives the newest scan of the node; it must not block.
	Snapshot  func() gpu.Snapshot
	Edits     Edits
	Executors map[string]Executor
	// Planner makes a claim's plan. Default: plan.Make.
	Planner func(*resourceapi.ResourceClaim, plan.Node) (plan.Plan, error)
	// Policy is the node's setting for sharing a GPU, or a MIG profile of it. Nil: none. NoMPS says why there is no MPS.
	Policy func(g gpu.GPU, profile string) sharing.Policy
	NoMPS  string
	// MPSDir holds a directory for each MPS daemon, at the same path for the container runtime.
	MPSDir string
	// MakeWhole makes a GPU whole that a plan is to take as a whole, and brings the device up to date with what that
	// changed. It is called under the GPU's lock, before anything is recorded.
	MakeWhole func(ctx context.Context, device *plan.Device) error
	// DevicePlugin names the extended resource by which a device plugin of the node serves the GPU at a PCI address. It
	// is empty where none does.
	DevicePlugin func(address string) string
	// Report receives background errors, as *claimerror.Error. It must not block.
	Report func(error)
}

// Engine is the state of this node's claims. It keeps nothing in memory: disk is the truth, and another process may be
// at work beside it.
type Engine struct {
	o       Options
	records *record.Store
	locks   string
}

const (
	LabelMkdir host.Label = "state.mkdir"
	LabelNotes host.Label = "gpu.notes"
)

// Open makes the engine's directories.
func Open(o Options) (*Engine, error) {
	if o.Planner == nil {
		o.Planner = plan.Make
	}
	e := &Engine{o: o, locks: filepath.Join(o.Dir, "locks")}
	if err := o.Host.MkdirAll(LabelMkdir, 0o700, e.locks); err != nil {
		return nil, fmt.Errorf("make the state directory %s: %w", e.locks, err)
	}
	var err error
	e.records, err = record.Open(o.Host, filepath.Join(o.Dir, "records"))
	return e, err
}

func (e *Engine) node() plan.Node {
	return plan.Node{Driver: e.o.Driver, Pool: e.o.Pool, Snapshot: e.o.Snapshot(), Policy: e.o.Policy, NoMPS: e.o.NoMPS}
}

// lockClaim takes a claim's lock: one byte, found from the UID, of the one file for all claims.
func (e *Engine) lockClaim(ctx context.Context, uid string) (*host.Lock, error) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(uid)) // never fails
	return e.o.Host.Lock(ctx, filepath.Join(e.locks, "claims"), int64(h.Sum64()>>2))
}

// gpuLocks are the held locks of some GPUs by PCI address.
type gpuLocks map[string]*host.Lock

func (l gpuLocks) release() {
	for _, lock := range l {
		lock.Release()
	}
}

// lockGPUs takes the locks of GPUs, given in locking order.
func (e *Engine) lockGPUs(ctx context.Context, addresses ...string) (gpuLocks, error) {
	held := gpuLocks{}
	for _, address := range addresses {
		lock, err := e.o.Host.Lock(ctx, filepath.Join(e.locks, "gpu-"+address), 0)
		if err != nil {
			held.release()
			return nil, err
		}
		held[address] = lock
	}
	return held, nil
}

func inUse(p plan.Plan, device string, cause error) error {
	return p.Claim.Refuse(device, claimerror.DeviceInUse, cause,
		"it is retried and succeeds once the other claim is released; delete that claim's pod if it should not be there")
}

func notReady(p plan.Plan, device string, cause error) error {
	return p.Claim.Refuse(device, claimerror.DriverNotReady, cause,
		"it is retried; check the driver installation on the node (nvidia-smi must work there)")
}

// failure explains an error of the disk or the driver root, or that the caller's deadline passed. An error that is
// explained already is returned as it is.
func failure(ctx context.Context, attempt string, claim plan.Claim, cause error) error {
	var explained *claimerror.Error
	if cause == nil || errors.As(cause, &explained) {
		return cause
	}
	f := &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: attempt, Claim: claim.String(), Cause: cause,
		Remedy: "it is retried; if it persists, look at the node's disk and at the log of its kubelet plugin",
	}
	if ctx.Err() != nil {
		f.Reason = claimerror.Interrupted
		f.Remedy = "it is retried; another claim's work on the same GPU or claim took longer than the kubelet waits"
	}
	return f
}
