// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// Edits returns container edits from the driver root.
type Edits interface {
	// Install is called before a spec is written, for the files on the node that the spec needs.
	Install(ctx context.Context) error
	// Common returns the edits for every container with a GPU.
	Common(ctx context.Context) (specs.ContainerEdits, error)
	// GPU returns the edits for one GPU.
	GPU(ctx context.Context, device plan.Device) (specs.ContainerEdits, error)
}

// Executor carries out steps of one kind. Its methods run under the lock of the step's GPU; steps of different GPUs run
// concurrently. A method may change only its step's device. Check does not receive other claims.
type Executor interface {
	// Admit inspects the GPU before anything is recorded or changed. An existing effect without a record is external,
	// and Revert never removes it. An error refuses the claim.
	Admit(ctx context.Context, w plan.Work) error
	// Apply creates the step's effect and notes its IDs of this boot in the device. It succeeds if the effect exists as
	// noted. An error that is plan.ErrUnchanged changed nothing.
	Apply(ctx context.Context, w plan.Work) error
	// Check returns an error unless the effect exists as noted. It changes nothing.
	Check(ctx context.Context, w plan.Work) error
	// Revert removes the effect, whatever Apply did. It succeeds if the effect or its GPU is gone. An effect that
	// co-tenants share stays until the last of them.
	Revert(ctx context.Context, w plan.Work) error
}

// Options configures an Engine. All fields but Kernel, Planner, NoMPS, MPSDir, LimitHook, LimitRequests, Metadata,
// Settle and the limits are required.
type Options struct {
	Host *host.Host
	// Dir holds records and locks. It must outlive the plugin and be on a persistent disk.
	Dir    string
	Specs  *store.Store
	Driver string
	// Pool and MonitorPool are the names of the node's pools.
	Pool, MonitorPool string
	Scans             gpu.Scans
	Edits             Edits
	// Kernel returns a text that differs after the kernel's device numbers have changed. It is called often, and in
	// each Prepare. Default: only scans show such a change.
	Kernel    func() string
	Executors map[string]Executor
	// Planner plans a claim. Default: plan.Make.
	Planner func(*resourceapi.ResourceClaim, plan.Node) (plan.Plan, error)
	Sharing sharing.Source
	// NoMPS is the reason why the node has no MPS; empty if it has.
	NoMPS string
	// MPSDir holds a directory for each MPS daemon; the container runtime uses the same path. LimitHook and
	// LimitRequests are as in cdi.Paths.
	MPSDir, LimitHook, LimitRequests string
	// Metadata gives the containers of new claims files about their devices.
	Metadata bool
	// Settle restores settings of earlier claims that would be wrong for the device, and updates the device. It is
	// called under the GPU's lock, before anything is recorded.
	Settle        []func(ctx context.Context, device *plan.Device) error
	DevicePlugins plan.DevicePlugins
	// Reports receives background errors, as *claimerror.Error.
	Reports notify.Reporter
	// WorkLimit is how long Recover, Identify, Verify and DeletedClaims wait for their work on claims. Default: 2 s.
	WorkLimit time.Duration
	// CallLimit limits the work on a claim, with its waits for locks. Default: 38 s. The kubelet waits for 45 s, and
	// the end of failed work takes some seconds.
	CallLimit time.Duration
	// Grace is the time that work on a GPU gets after the limit, because calls of NVML have none. Default: 2 s.
	Grace time.Duration
}

// Engine manages the node's claims. In memory it keeps only which background work is in progress: another process may
// work on the same files.
type Engine struct {
	o       Options
	records *record.Store
	locks   string
	view    View

	recovering, identifying, verifying, confirming, keeping claimWork

	// confirms is held by confirm, so that a second caller waits until the specs are confirmed.
	confirms sync.Mutex

	mu sync.Mutex
	// kept are the claims whose release is incomplete, by UID: their records are intents. pending means that a record
	// was unreadable, or an intent was left, since the last Recover began.
	kept    map[string]plan.Claim
	pending bool
	// minors are the GPUs' minor numbers as of the last Recover, by PCI address; kernel is Options.Kernel as of the
	// last confirm.
	minors map[string]int
	kernel string
}

const (
	labelMkdir host.Label = "state.mkdir"
	labelNotes host.Label = "gpu.notes"
)

// Open returns an Engine and creates its directories.
func Open(o Options) (*Engine, error) {
	if o.Planner == nil {
		o.Planner = plan.Make
	}
	if o.Kernel == nil {
		o.Kernel = func() string { return "" }
	}
	o.WorkLimit, o.CallLimit = cmp.Or(o.WorkLimit, 2*time.Second), cmp.Or(o.CallLimit, 38*time.Second)
	o.Grace = cmp.Or(o.Grace, 2*time.Second)
	e := &Engine{o: o, locks: filepath.Join(o.Dir, "locks"), minors: map[string]int{}, kept: map[string]plan.Claim{}}
	e.view.Engine = e
	for _, w := range []*claimWork{&e.recovering, &e.identifying, &e.verifying, &e.confirming, &e.keeping} {
		w.Ordered = o.Host.Ordered()
	}
	if err := o.Host.MkdirAll(labelMkdir, 0o700, e.locks); err != nil {
		return nil, fmt.Errorf("make the state directory %s: %w", e.locks, err)
	}
	var err error
	e.records, err = record.Open(o.Host, filepath.Join(o.Dir, "records"))
	return e, err
}

// View returns the Engine for those that only look.
func (e *Engine) View() *View { return &e.view }

func (e *Engine) node() plan.Node {
	return plan.Node{
		Driver:      e.o.Driver,
		Pool:        e.o.Pool,
		MonitorPool: e.o.MonitorPool,
		Snapshot:    e.o.Scans.Snapshot(),
		Policy:      e.o.Sharing.Policy,
		NoMPS:       e.o.NoMPS,
		Metadata:    e.o.Metadata,
	}
}

// lockClaim takes a claim's lock: the byte at a hash of the UID, in one file for all claims. It returns the ID of the
// boot too, which decides what the claim's record means.
func (e *Engine) lockClaim(ctx context.Context, uid string) (lock *host.Lock, boot string, err error) {
	if boot, err = e.o.Host.BootID(); err != nil {
		return nil, "", err
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(uid)) // It never fails.
	lock, err = e.o.Host.Lock(ctx, filepath.Join(e.locks, "claims"), int64(h.Sum64()>>2))
	return lock, boot, err
}

// gpuLocks are held locks of GPUs, by PCI address.
type gpuLocks map[string]*gpuLock

// gpuLock is a GPU's held lock. It keeps the records that are read under it: the readable records of claims that may
// hold the GPU do not change until its release. With many shares of a GPU, they are most of a Prepare's work.
type gpuLock struct {
	*host.Lock
	read map[string]record.Record
	// users are the operation, and its work on the GPU. The last one to end releases the lock.
	users atomic.Int32
	// hangs means that the work goes on after its limit. Only the operation uses it.
	hangs bool
}

// done ends a use of the lock.
func (l *gpuLock) done() {
	if l.users.Add(-1) == 0 {
		l.Release()
	}
}

func (l *gpuLock) get(uid string, records *record.Store) (record.Record, error) {
	if r, known := l.read[uid]; known {
		return r, nil
	}
	r, err := records.Get(uid)
	if err == nil && r.State != record.Unknown {
		l.read[uid] = r
	}
	return r, err
}

func (l gpuLocks) release() {
	for _, lock := range l {
		lock.done()
	}
}

// lockTogether limits the wait for a lock while others are held.
const lockTogether = time.Second

// lockGPUs takes the locks of GPUs, in the order of the addresses. Work that hangs on a GPU keeps its lock. So after a
// moment lockGPUs waits for a lock without holding the others, and begins again.
func (e *Engine) lockGPUs(ctx context.Context, addresses ...string) (gpuLocks, error) {
	for {
		held, busy, err := e.tryLockGPUs(ctx, addresses)
		if busy == "" {
			return held, err
		}
		lock, err := e.lockGPU(ctx, busy)
		if err != nil {
			return nil, err
		}
		lock.Release()
	}
}

// tryLockGPUs returns the address of a GPU whose lock it did not get in time; then it holds none.
func (e *Engine) tryLockGPUs(ctx context.Context, addresses []string) (held gpuLocks, busy string, err error) {
	held = gpuLocks{}
	for _, address := range addresses {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if len(held) > 0 {
			wait, cancel = context.WithTimeout(ctx, lockTogether)
		}
		lock, err := e.lockGPU(wait, address)
		late := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if err != nil {
			held.release()
			if late {
				return nil, address, nil
			}
			return nil, "", err
		}
		held[address] = &gpuLock{Lock: lock, read: map[string]record.Record{}}
		held[address].users.Store(1)
	}
	return held, "", nil
}

func (e *Engine) lockGPU(ctx context.Context, address string) (*host.Lock, error) {
	lock, err := e.o.Host.Lock(ctx, filepath.Join(e.locks, "gpu-"+address), 0)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("another operation on GPU %s goes on: %w", address, err)
	}
	return lock, err
}

// limited returns a context for the work on a claim.
func (e *Engine) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.o.CallLimit)
}

func inUse(p plan.Plan, device string, cause error) error {
	return p.Claim.Refuse(device, claimerror.DeviceInUse, cause,
		"the kubelet retries and succeeds after the release of the other claim; delete that claim's pod if it is "+
			"not needed")
}

func notReady(p plan.Plan, device string, cause error) error {
	return p.Claim.Refuse(device, claimerror.DriverNotReady, cause,
		"the operation is retried; check the driver installation on the node (nvidia-smi must work there)")
}

// failure explains an error of the disk or the driver root, or a passed deadline. It returns an explained error
// unchanged.
func failure(ctx context.Context, attempt string, claim plan.Claim, cause error) error {
	var explained *claimerror.Error
	if cause == nil || errors.As(cause, &explained) {
		return cause
	}
	f := &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: attempt, Claim: claim.String(), UID: claim.UID, Cause: cause,
		Remedy: "the operation is retried; if it persists, check the node's disk and the log of its kubelet plugin",
	}
	switch {
	case errors.Is(cause, host.ErrPanic):
		f.Reason = claimerror.InternalFault
		f.Remedy = "the operation is retried; please report the stack in the log of the node's kubelet plugin"
	case ctx.Err() != nil:
		f.Reason = claimerror.Interrupted
		f.Remedy = "the operation is retried; another one on the same GPU or claim took longer than the kubelet " +
			"waits; " + ifItHangs
	}
	return f
}
