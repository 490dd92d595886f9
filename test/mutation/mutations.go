// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

const (
	state      = "./pkg/devicestate"
	slices     = "./pkg/resourceslices"
	partitions = "./pkg/partition/mig"
	control    = "./pkg/controller"
	reviews    = "./pkg/admission"
)

// mutations are the ways the code is broken, and who must notice.
var mutations = []Mutation{
	{
		Name: "a durable file is not flushed", File: "internal/host/file.go",
		Old: "return h.do(label, CallSync, path, f.Sync)", New: "return nil",
		Package: state, Test: "TestEngine_PowerCutAfterEveryOperation_KeepsCommits",
	},
	{
		Name: "a new name is not flushed", File: "internal/host/file.go",
		Old:     "		return fmt.Errorf(\"write %s: %w\", path, err)\n	}\n	return h.SyncDir(label, filepath.Dir(path))",
		New:     "		return fmt.Errorf(\"write %s: %w\", path, err)\n	}\n	return nil",
		Package: state, Test: "TestEngine_PowerCutAfterEveryOperation_KeepsCommits",
	},
	{
		Name: "a failed write leaves its temporary file", File: "internal/host/file.go",
		Old: "		_ = h.do(label, CallRemove, temp, func() error { return os.Remove(temp) })\n", New: "",
		Package: "./internal/host", Test: "TestWriteDurable_OperationFails_KeepsOldFileAndNoOther",
	},
	{
		Name: "effects begin without an intent record", File: "pkg/devicestate/prepare.go",
		Old: "err := e.records.Put(intent); err != nil", New: `err := error(nil); intent.State == ""`,
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "the answer comes before the commit", File: "pkg/devicestate/prepare.go",
		Old: "	if err == nil {\n		err = e.records.Put(record.Record{State: record.Committed, BootID: boot, Plan: p})\n	}\n", New: "",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a GPU that another claim holds is handed out", File: "pkg/devicestate/overlap.go",
		Old: "if device, taken := p.Conflict(r.Plan, address); taken {", New: "if device, taken := p.Conflict(r.Plan, address); taken && device.Name == \"\" {",
		Package: state, Test: "TestPrepare_GPUHeldByClaim_RefusedUntilUnprepare",
	},
	{
		Name: "a claim is not noted on its GPU", File: "pkg/devicestate/overlap.go",
		Old: "notes := []string{p.Claim.UID}", New: "notes := []string{}",
		Package: state, Test: "TestPrepare_GPUHeldByClaim_RefusedUntilUnprepare",
	},
	{
		Name: "notes of another boot are believed", File: "pkg/devicestate/overlap.go",
		Old: "if len(was) > 0 && was[0] == boot {", New: "if len(was) >= 0 {\n		if len(was) == 0 {\n			return was, nil, nil\n		}",
		Package: state, Test: "TestPrepare_NotesLostInPowerCut_FindsHolders",
	},
	{
		Name: "watching counts as holding", File: "pkg/plan/make.go",
		Old: "Kind: named.Kind, Admin: admin,", New: "Kind: named.Kind,",
		Package: state, Test: "TestPrepare_Monitor_DoesNotHoldGPU",
	},
	{
		Name: "an unknown record blocks nothing", File: "pkg/devicestate/overlap.go",
		Old: "	if len(addresses) > 0 && !prepared {", New: "	if len(addresses) > 0 && !prepared && false {",
		Package: state, Test: "TestRecover_UnreadableRecord_RebuildsOrBlocks",
	},
	{
		Name: "an unreadable record counts as none", File: "pkg/devicestate/prepare.go",
		Old: "		return e.rebuild(uid, err)\n", New: "		return record.Record{}, nil\n",
		Package: state, Test: "TestRecover_UnreadableRecord_RebuildsOrBlocks",
	},
	{
		Name: "the spec outlives its claim", File: "pkg/devicestate/unprepare.go",
		Old: "	if err := e.o.Specs.Remove(p.Claim.UID); err != nil {\n		return err\n	}\n", New: "",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "the record goes before the effects", File: "pkg/devicestate/unprepare.go",
		Old:     "	if err := e.undoRecord(ctx, r, boot, locks); err != nil {\n		return err\n	}\n	if err := e.records.Remove(r.Plan.Claim.UID); err != nil {\n		return err\n	}\n",
		New:     "	if err := e.records.Remove(r.Plan.Claim.UID); err != nil {\n		return err\n	}\n	if err := e.undoRecord(ctx, r, boot, locks); err != nil {\n		return err\n	}\n",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a release is not recorded before it begins", File: "pkg/devicestate/unprepare.go",
		Old: "if r.State == record.Committed && len(r.Plan.Steps) > 0 {", New: "if r.State == record.Unknown {",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "an intent is left as it is", File: "pkg/devicestate/recover.go",
		Old: "	case r.State == record.Intent:", New: "	case r.State == \"\":",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "Unprepare takes no GPU locks", File: "pkg/devicestate/unprepare.go",
		Old: "	locks, err := e.lockGPUs(ctx, old.Plan.HeldGPUs()...)\n", New: "	locks, err := e.lockGPUs(ctx)\n",
		Package: state, Test: "TestUndo_GPULocks_HeldToTheEnd",
	},
	{
		Name: "Unprepare lets GPU locks go at once", File: "pkg/devicestate/unprepare.go",
		Old: "	defer locks.release()\n", New: "	locks.release()\n",
		Package: state, Test: "TestUndo_GPULocks_HeldToTheEnd",
	},
	{
		Name: "Recover takes no GPU locks", File: "pkg/devicestate/recover.go",
		Old: "	f.Claim, f.Found = r.Plan.Claim, string(r.State)\n	locks, err := e.lockGPUs(ctx, r.Plan.HeldGPUs()...)\n", New: "	f.Claim, f.Found = r.Plan.Claim, string(r.State)\n	locks, err := e.lockGPUs(ctx)\n",
		Package: state, Test: "TestUndo_GPULocks_HeldToTheEnd",
	},
	{
		Name: "Recover lets GPU locks go at once", File: "pkg/devicestate/recover.go",
		Old: "	defer locks.release()\n	switch {\n", New: "	locks.release()\n	switch {\n",
		Package: state, Test: "TestUndo_GPULocks_HeldToTheEnd",
	},
	{
		Name: "a spec without a record stays", File: "pkg/devicestate/recover.go",
		Old: "	return \"removed\", e.removeOrphan(f.Claim.UID)\n", New: "	return \"removed\", nil\n",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "the boot ID is ignored", File: "pkg/devicestate/prepare.go",
		Old: "	standing := old.BootID == boot\n", New: "	standing := old.BootID != \"\"\n",
		Package: state, Test: "TestEngine_PowerCutAfterEveryOperation_KeepsCommits",
	},
	{
		Name: "another allocation counts as prepared", File: "pkg/devicestate/prepare.go",
		Old: "	found := old.State == record.Committed && old.Plan.Allocation == p.Allocation\n", New: "	found := old.State == record.Committed\n",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a caller who left is not noticed", File: "pkg/devicestate/prepare.go",
		Old: "		err = context.Cause(ctx)\n", New: "		err = nil\n",
		Package: state, Test: "TestPrepare_CallerLeavesMeanwhile_LeavesNothing",
	},
	{
		Name: "a claim is released on an API error", File: "pkg/devicestate/deletedclaims.go",
		Old: "return errors.Is(err, ErrNoClaim) || err == nil", New: "return errors.Is(err, ErrNoClaim) || err != nil || err == nil",
		Package: state, Test: "TestRelease_APIServerDown_Keeps",
	},
	{
		Name: "there is no grace period", File: "pkg/devicestate/deletedclaims.go",
		Old: "if d.engine.o.Host.Now().Sub(first) < d.grace {", New: "if d.grace < 0 {",
		Package: state, Test: "TestRelease_ClaimGoneForGrace_Releases",
	},
	{
		Name: "a claim is released under a process", File: "pkg/devicestate/deletedclaims.go",
		Old: "	if holder != \"\" {\n", New: "	if false {\n",
		Package: state, Test: "TestRelease_ClaimInUse_KeepsAndReports",
	},
	{
		Name: "the checksum is not looked at", File: "pkg/record/record.go",
		Old: "if hex.EncodeToString(sum[:]) != head.SHA256 {", New: "if len(sum) == 0 {",
		Package: "./pkg/record", Test: "TestDecode_DamagedFile_ReturnsErrUnreadable",
	},
	{
		Name: "waiters for a lock are served in any order", File: "internal/host/lock.go",
		Old: "queue.waiters = append(queue.waiters, turn)", New: "queue.waiters = append([]chan error{turn}, queue.waiters...)",
		Package: "./internal/host", Test: "TestLock_ManyWaiters_GrantedInOrder",
	},
	{
		Name: "a lock holds in one process only", File: "internal/host/lock.go",
		Old: "			err = unix.FcntlFlock(fd, cmd, lock)\n", New: "			err = nil\n",
		Package: "./internal/host", Test: "TestLock_TwoProcesses_Exclude",
	},
	{
		Name: "a held GPU that broke is withdrawn", File: "pkg/resourceslices/gpustate.go",
		Old: "		g.held = append(g.held, h)\n", New: "		if h.Device.Kind != gpu.KindGPU {\n			g.held = append(g.held, h)\n		}\n",
		Package: slices, Test: "TestBuild_ConditionsAndHeldDevices_PublishesExpectedDevices",
	},
	{
		Name: "a monitor is not tainted", File: "pkg/resourceslices/device.go",
		Old: "	d.Taints = []resourceapi.DeviceTaint{{Key: MonitorTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule}}\n", New: "",
		Package: slices, Test: "TestBuild_ClassOfDriverAlone_AllocatesGPUsOnly",
	},
	{
		Name: "a partition is made though a foreign one stands there", File: "pkg/partition/mig/executor.go",
		Old: "		return obstructed(obstacles)\n	})\n}\n\nfunc (x *Executor) Apply", New: "		return nil\n	})\n}\n\nfunc (x *Executor) Apply",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a foreign partition is not marked as one", File: "pkg/partition/mig/executor.go",
		Old: "			d.Partition.Foreign = true\n", New: "",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "what took a partition's place is destroyed for it", File: "pkg/partition/mig/partition.go",
		Old: "	return i.hasDevice(p.UUID)\n", New: "	return true\n",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a GPU instance is left behind", File: "pkg/partition/mig/partition.go",
		Old: "		if err := i.Destroy(); err != nil {\n			return g.inUse(fmt.Errorf(\"destroy %s: %w\", i, err), i.info.ID)\n		}\n", New: "",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a failed read counts as a missing GPU", File: "internal/nvml/sessionpool/pool.go",
		Old: "return errors.Is(err, ErrNoGPU) ||", New: "return err != nil ||",
		Package: partitions, Test: "TestExecutor_CallOfNVMLFailsOrHangs_LosesAndLeaksNothing",
	},
	{
		Name: "one answer is enough to give up a partition", File: "internal/nvml/sessionpool/pool.go",
		Old: "	for range 2 {", New: "	for range 1 {",
		Package: partitions, Test: "TestExecutor_CallOfNVMLFailsOrHangs_LosesAndLeaksNothing",
	},
	{
		Name: "an odd error of a description withdraws a GPU", File: "pkg/inventory/gpu.go",
		Old: "	if sessionpool.IsGone(err) {\n", New: "	if sessionpool.IsGone(err) || err != nil {\n",
		Package: "./pkg/inventory", Test: "TestScan_AnyCallFails_WithdrawsGPUOnlyIfUnusable",
	},
	{
		Name: "a claim's name counts although its UID differs", File: "pkg/kubeletplugin/podresources/usage.go",
		Old: "return !prepared && claim.Name", New: "return claim.Name",
		Package: "./pkg/kubeletplugin/podresources", Test: "TestKubelet_AwayAndThere_AnswersOnlyWhenThere",
	},
	{
		Name: "a spec that returns is not read again", File: "pkg/devicestate/prepare.go",
		Old: "	case r.State == record.Unknown:\n", New: "	case r.State == record.Unknown && uid == \"\":\n",
		Package: partitions, Test: "TestUnprepare_RecordDamagedAndSpecMissingOnce_DestroysPartition",
	},
	{
		Name: "a pending MIG mode is not refused", File: "pkg/partition/mig/mode.go",
		Old: "	if pending {\n		return unchanged(", New: "	if pending && current {\n		return unchanged(",
		Package: partitions, Test: "TestPrepare_MIGModePending_Refused",
	},
	{
		Name: "an administrator's MIG mode on a whole GPU is not refused", File: "pkg/partition/mig/mode.go",
		Old: "case scanned.MIG.Enabled:", New: "case scanned.MIG.Enabled && x.o.AdoptForeign:",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a spec is repaired without a check of its partitions", File: "pkg/devicestate/recover.go",
		Old: "	if err := e.checkSteps(ctx, r.Plan); err != nil {\n		return \"\", err\n	}\n	if _, err := e.o.Specs", New: "	if _, err := e.o.Specs",
		Package: partitions, Test: "TestRecover_PartitionVanished_ReportsAndWritesNoSpec",
	},
	{
		Name: "a creation that timed out counts as none", File: "pkg/partition/mig/partition.go",
		Old: "	case exact != nil && !errors.Is(cause, nvml.InsufficientResources):\n		return exact, nil\n", New: "	case exact != nil && errors.Is(cause, plan.ErrUnchanged):\n		return exact, nil\n",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a partition that vanished is made before the record says so", File: "pkg/devicestate/prepare.go",
		Old: "if err = e.records.Put(record.Record{State: record.Committed, BootID: boot, Plan: p}); err == nil {\n			_, err", New: "if standing {\n			_, err",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a mode is switched on and nobody notes it", File: "pkg/partition/mig/mode.go",
		Old: "	if err := x.modes.Put(r); err != nil {\n		return unchanged(err)\n	}\n", New: "	_ = r\n",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "the whole is handed out of a GPU in MIG mode", File: "pkg/partition/mig/mode.go",
		Old: "	return x.modes.Restore(d.PCIAddress, d.UUID, true, toFound)\n", New: "	return nil\n",
		Package: partitions, Test: "TestExecutor_RandomMoves_KeepsInvariants",
	},
	{
		Name: "partitions that overlap do not", File: "pkg/gpu/snapshot.go",
		Old: "return p.Start < o.End() && o.Start < p.End()", New: "return p.Start == o.Start && p.End() == o.End()",
		Package: slices, Test: "TestBuild_MIGModesAndHeldPartitions_PublishesExpectedDevices",
	},
	{
		Name: "a capability is left out of the container", File: "internal/driverroot/partition.go",
		Old: "[]string{instance, filepath.Join(", New: "[]string{filepath.Join(",
		Package: "./internal/driverroot", Test: "TestGPU_Partition_AddsTwoCapabilities",
	},
	{
		Name: "a released claim's partition passes for foreign", File: "pkg/kubeletplugin/publishing/node.go",
		Old: "	n.owned, n.switched = n.ownedNow, n.switchedNow\n", New: "",
		Package: "./pkg/kubeletplugin/publishing", Test: "TestNode_PartitionOwnedBeforeOrAfterTheScan_IsNotForeign",
	},
	{
		Name: "a server without counters gets partitions", File: "pkg/kubeletplugin/publishing/node.go",
		Old: "Counters: f.counters,", New: "Counters: true,",
		Package: "./pkg/kubeletplugin/publishing", Test: "TestNode_ServerWithoutCounters_BuildsNothingThatOverlaps",
	},
	{
		Name: "shares that are more than their GPU are handed out", File: "pkg/devicestate/overlap.go",
		Old: `held := totals.add(r.Plan); held != nil && !prepared {`, New: `held := totals.add(r.Plan); held != nil && held.device == "" {`,
		Package: partitions, Test: "TestPrepare_SharesExceedGPU_Refused",
	},
	{
		Name: "two requests have the limit of the first", File: "pkg/plan/parameters.go",
		Old: "= new(d.Share.UsableBytes), d.Share.Compute", New: "= new(p.Devices[0].Share.UsableBytes), d.Share.Compute",
		Package: "./pkg/plan", Test: "TestMake_SeveralShares_LimitsEachRequest",
	},
	{
		Name: "a request has two daemons", File: "pkg/plan/parameters.go",
		Old: "d.Request == other.Request && d.Name != other.Name:", New: "d.Request == other.Request && d.Name == other.Name:",
		Package: "./pkg/plan", Test: "TestMake_InvalidShare_ReturnsError",
	},
	{
		Name: "a daemon is limited to the first request", File: "pkg/plan/share.go",
		Old: "w.Devices[i].Name == w.Target().Name && w", New: "i == w.Device && w",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "a claim's second share of a GPU is not counted", File: "pkg/devicestate/overlap.go",
		Old: "		t.use[d.Name].Add(d.Share)\n	}\n	return t", New: "		*t.use[d.Name] = plan.Use{}\n		t.use[d.Name].Add(d.Share)\n	}\n	return t",
		Package: partitions, Test: "TestPrepare_SharesExceedGPU_Refused",
	},
	{
		Name: "two requests of a partition do not share it", File: "pkg/devicestate/unprepare.go",
		Old: "if p.Devices[j].Name == w.Target().Name {", New: "if j == w.Device {",
		Package: partitions, Test: "TestPrepare_TwoRequestsOfPartition_ShareIt",
	},
	{
		Name: "a claim that ends is taken for somebody who changes the compute mode", File: "pkg/executor/mps/watcher.go",
		Old: "				mode := w.wrongMode(d)\n				if mode == nil || len(clients(now, d.Name)) == 0 {", New: "				mode := new(nvml.ComputeDefault)\n				if now != nil {",
		Package: "./pkg/executor/mps", Test: "TestScan_ClaimUnpreparedMeanwhile_ReportsNothing",
	},
	{
		Name: "a share can be of next to nothing", File: "pkg/resourceslices/catalogue.go",
		Old: "Min: bytes(sharing.MinMemory)", New: "Min: bytes(0 * sharing.MinMemory)",
		Package: slices, Test: "TestBuild_AnyMemoryRequested_LimitsProcessToCharge",
	},
	{
		Name: "a share of nothing has no limit", File: "pkg/plan/share.go",
		Old: "(total/sharing.Step), 1) * sharing.Step", New: "(total/sharing.Step), 0) * sharing.Step",
		Package: slices, Test: "TestBuild_AnyMemoryRequested_LimitsProcessToCharge",
	},
	{
		Name: "Prepare takes a share below the floor", File: "pkg/plan/parameters.go",
		Old: "if s.MemoryBytes < sharing.MinMemory && p.Refused == nil {", New: "if s.MemoryBytes < 0 && p.Refused == nil {",
		Package: "./pkg/plan", Test: "TestMake_AnyMemoryConsumed_LimitedOrRefused",
	},
	{
		Name: "a process with a daemon's old number is ended", File: "internal/mpsd/supervisor/directory.go",
		Old: "err != nil || now != n.Started", New: "err != nil || now == \"\"",
		Package: "./internal/mpsd/supervisor", Test: "TestNew_DaemonOfKilledSupervisor_EndsOnlyThatProcess",
	},
	{
		Name: "the API server is asked about each record", File: "pkg/devicestate/deletedclaims.go",
		Old: "if referenced(c) || !d.gone", New: "if referenced(plan.Claim{}) || !d.gone",
		Package: state, Test: "TestRelease_KubeletKnowsClaims_DoesNotAskAPIServer",
	},
	{
		Name: "a server's cache decides that a claim is deleted", File: "pkg/devicestate/deletedclaims.go",
		Old: "d.gone(ctx, c, d.claims.Get)", New: "d.gone(ctx, c, d.claims.GetCached)",
		Package: state, Test: "TestRelease_CacheLags_Keeps",
	},
	{
		Name: "a process that computes on all GPUs is taken for an agent", File: "pkg/kubeletplugin/podresources/usage.go",
		Old: `isNode(file)("dev/nvidia-uvm")`, New: `file == ""`,
		Package: "./pkg/kubeletplugin/podresources", Test: "TestUsage_OpenDeviceNodes_NameTheProcess",
	},
	{
		Name: "GPUs stay healthy while NVML hangs", File: "pkg/inventory/watch.go",
		Old: "if silent++; silent == pollsToUnknown {", New: "if silent++; silent < 0 {",
		Package: "./pkg/inventory", Test: "TestWatch_NVMLHangs_ReportsHealthUnknown",
	},
	{
		Name: "GPUs stay healthy while NVML fails", File: "pkg/inventory/watch.go",
		Old: "if silent++; silent >= pollsToUnknown {", New: "if silent++; silent < 0 {",
		Package: "./pkg/inventory", Test: "TestWatch_NVMLFailsForLong_ReportsHealthUnknown",
	},
	{
		Name: "two supervisors use one directory", File: "internal/mpsd/supervisor/supervisor.go",
		Old: "filepath.Join(o.Dir, lockFile), 0)", New: "filepath.Join(o.Dir, lockFile+fmt.Sprintf(\"%p\", &o)), 0)",
		Package: "./internal/mpsd/supervisor", Test: "TestNew_SecondSupervisor_WaitsForTheFirst",
	},
	{
		Name: "a daemon is limited to the smaller share", File: "pkg/executor/mps/executor.go",
		Old: "if a == nil || b != nil && *a >= *b {", New: "if a == nil || b != nil && *a <= *b {",
		Package: "./pkg/executor/mps", Test: "TestDaemon_DevicesOfOlderRecords_KeepTheirLimits",
	},
	{
		Name: "the first of two sharers to leave takes the partition along", File: "pkg/partition/mig/executor.go",
		Old: "if d.Partition.Foreign || slices.ContainsFunc(w.CoTenants(), uses(d.Partition)) {", New: "if d.Partition.Foreign || slices.ContainsFunc(w.CoTenants()[:0], uses(d.Partition)) {",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "the first of two sharers to leave ends the daemon", File: "pkg/executor/mps/executor.go",
		Old: "return nil // The daemon keeps its limits", New: "continue // The daemon keeps its limits",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "a daemon is limited to the newest share", File: "pkg/executor/mps/executor.go",
		Old: "out.MemoryLimit = loosest(out.MemoryLimit, s.Sharing.MemoryLimit)", New: "_ = loosest(out.MemoryLimit, s.Sharing.MemoryLimit)",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "a compute mode is set and nobody notes it", File: "pkg/executor/mps/executor.go",
		Old: "			if err := x.modes.Put(r); err != nil {\n				return err\n			}\n", New: "			_ = r\n",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "a time slice is set and nobody notes it", File: "pkg/executor/timeslice/executor.go",
		Old: "	if err := x.records.Put(r); err != nil {\n		return err\n	}\n	if err := x.tool.Set(", New: "	if err := x.tool.Set(",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "a time slice is noted before it is set", File: "pkg/executor/timeslice/executor.go",
		Old: "	r.Set = unknown\n", New: "	r.Set = d.Sharing.Interval\n",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "an unneeded setting is restored again and again", File: "pkg/executor/settings.go",
		Old: " || now.Before(state.next) {", New: " {",
		Package: partitions, Test: "TestReconcile_GPUUnused_RestoresMode",
	},
	{
		Name: "a share joins a claim that is half prepared", File: "pkg/executor/failure.go",
		Old: "if !t.Committed {", New: "if false {",
		Package: partitions, Test: "TestPrepare_ShareOfHalfPreparedDevice_Refused",
	},
	{
		Name: "an informational capacity has no request policy", File: "pkg/resourceslices/catalogue.go",
		Old: "	case c.policy == nil || monitor:\n		return &", New: "	case c.policy == nil && s.offer.MaxShares < 0:\n		return &",
		Package: slices, Test: "TestBuild_MemoryRequested_AllocatesShares",
	},
	{
		Name: "a share ignores the strategy of those beside it", File: "pkg/devicestate/overlap.go",
		Old: "node.Standing[held.device] = *held.sharing", New: "node.Standing[held.device] = plan.Sharing{}",
		Package: "./pkg/partition/mig", Test: "TestPrepare_SharingPolicyChanged_JoinsShares",
	},
	{
		Name: "slices show the settings and not the shares of a device", File: "pkg/resourceslices/device.go",
		Old: "standing = h.Shared", New: "standing = \"\"",
		Package: slices, Test: "TestBuild_SharesOfOtherStrategy_ArePublishedAsTheyAre",
	},
	{
		Name: "a claim that names no capacity gets a share", File: "pkg/sharing/policy.go",
		Old: "Memory: total / Step * Step}", New: "Memory: total / Step / 2 * Step}",
		Package: slices, Test: "TestBuild_NoCapacityRequested_AllocatesGPUAlone",
	},
	{
		Name: "sharers need not agree", File: "pkg/plan/share.go",
		Old: "case a.Strategy != b.Strategy:", New: "case a.Strategy != b.Strategy && a.Timed && b.Timed:",
		Package: "./pkg/plan", Test: "TestDisagrees_DifferentSharing_NamesTheDifference",
	},
	{
		Name: "a daemon that starts anew has another pipe directory", File: "internal/mpsd/supervisor/daemon.go",
		Old: "	if err := emptied(filepath.Join(d.dir, pipeDir)); err != nil {\n", New: "	if err := errors.Join(os.RemoveAll(filepath.Join(d.dir, pipeDir)), os.Mkdir(filepath.Join(d.dir, pipeDir), 0o755)); err != nil {\n",
		Package: "./internal/mpsd/supervisor", Test: "TestSupervisor_DaemonDies_RestartsIt",
	},
	{
		Name: "a bad file of settings takes the good ones away", File: "cmd/dra-kubelet-plugin/settings.go",
		Old: "	if err != nil {\n		if s.lastError", New: "	if err != nil {\n		s.current.Store(&parsed)\n		if s.lastError",
		Package: "./cmd/dra-kubelet-plugin", Test: "TestSharingSettings_FileChanges_AreFollowed",
	},
	{
		Name: "a group takes nothing of its GPUs", File: "pkg/resourceslices/group.go",
		Old:     "d.ConsumesCounters = counters.consumedByGroup(g)",
		New:     "_ = counters",
		Package: slices, Test: "TestBuild_GroupsWholesAndPartitions_ExcludeEachOther",
	},
	{
		Name: "a partition takes nothing of what groups draw on", File: "pkg/resourceslices/counters.go",
		Old:     "	if c.size[address] == 0 {\n		return nil",
		New:     "	if c.size[address] == 0 || e.device.Kind == gpu.KindMIG {\n		return nil",
		Package: slices, Test: "TestBuild_GroupsWholesAndPartitions_ExcludeEachOther",
	},
	{
		Name: "a held group whose link failed is withdrawn", File: "pkg/resourceslices/group.go",
		Old:     "for _, name := range sortedKeys(held) {",
		New:     "for _, name := range sortedKeys(map[string][]gpuState{}) {",
		Package: slices, Test: "TestBuild_GroupHeld_KeepsItsGPUs",
	},
	{
		Name: "groups are published without counters", File: "pkg/resourceslices/group.go",
		Old:     "case isHeld || !b.o.Counters ||",
		New:     "case isHeld ||",
		Package: slices, Test: "TestBuild_LinksAndHeldGroups_PublishesExpectedGroups",
	},
	{
		Name: "a prepared group is planned anew", File: "pkg/devicestate/prepare.go",
		Old:     "		node.Prepared = old.Plan\n",
		New:     "",
		Package: state, Test: "TestPrepare_PreparedGroupChanges_KeepsItsGPUs",
	},
	{
		Name: "a group takes GPUs that are cut", File: "pkg/devicestate/prepare.go",
		Old:     "if d.PCIAddress != address || d.Admin {",
		New:     "if d.PCIAddress != address || d.Admin || d.Kind == gpu.KindGroup {",
		Package: state, Test: "TestPrepare_Group_MakesEachGPUWhole",
	},
	{
		Name: "the file for NCCL outlives its claim", File: "pkg/cdi/store/store.go",
		Old:     "		if err := s.host.Remove(LabelRemove, s.TopologyPath(uid)); err != nil {\n			return fmt.Errorf(\"remove the topology file for NCCL: %w\", err)\n		}\n",
		New:     "",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a container gets the first GPU of its group alone", File: "pkg/cdi/spec.go",
		Old:     "			join(&spec.Devices[at[name]].ContainerEdits, edits.Devices[i])\n",
		New:     "",
		Package: state, Test: "TestPrepare_Group_OneDeviceWithOwnNCCLFile",
	},
	{
		Name: "NCCL is told of GPUs that the request has not", File: "pkg/plan/parameters.go",
		Old:     "nccl.File(gpus)",
		New:     "nccl.File(m.node.Snapshot.GPUs)",
		Package: "./pkg/plan", Test: "TestMake_Topology_NamesTheRequestsGPUs",
	},
	{
		Name: "a link that one end reports counts", File: "pkg/topology/interconnect.go",
		Old:     "if n = min(n, reported[[2]string{ends[1], ends[0]}]); n > 0 && !w.notPeers[ends] {",
		New:     "if n > 0 && !w.notPeers[ends] {",
		Package: "./pkg/topology", Test: "TestFind_LinksUncertain_AreIgnored",
	},
	{
		Name: "a GPU that lost a link stays in its groups", File: "pkg/topology/interconnect.go",
		Old:     "w.switched[address] = n == maxLinks[w.models[address]]",
		New:     "w.switched[address] = n > 0",
		Package: "./pkg/topology", Test: "TestFind_SwitchLinksFail_DropsTheirGroups",
	},
	{
		Name: "GPUs that are no peers are grouped", File: "pkg/inventory/inventory.go",
		Old:     "	peers(s.GPUs, handles)\n",
		New:     "	_ = handles\n",
		Package: "./pkg/inventory", Test: "TestScan_LinkFails_RemovesGroups",
	},
	{
		Name: "a class is removed without the grace", File: "pkg/controller/classes.go",
		Old: "if rest := k.grace - time.Since(since); rest > 0 {", New: "if rest := k.grace - time.Since(since); rest > k.grace {",
		Package: control, Test: "TestReconcileClasses_SliceComesAndGoes_WritesNothing",
	},
	{
		Name: "an administrator's class is changed", File: "pkg/controller/classes.go",
		Old: "	if !k.options.Ours(is) {\n		return 0, nil\n	}\n", New: "",
		Package: control, Test: "TestReconcileClasses_AdministratorsClass_LeftAlone",
	},
	{
		Name: "an administrator's class is removed", File: "pkg/controller/classes.go",
		Old: "!ok || names[class.Name] || !k.options.Ours(class) ||", New: "!ok || names[class.Name] ||",
		Package: control, Test: "TestReconcileClasses_AdministratorsClass_LeftAlone",
	},
	{
		Name: "a claim that names a class by an alternative is no user of it", File: "pkg/controller/clustermetrics.go",
		Old: "return ours(s.DeviceClassName) })", New: "return false })",
		Package: control, Test: "TestReconcileClasses_Unwanted_RemovedAfterGraceUnlessInUse",
	},
	{
		Name: "only the first page of a list is looked at for users of a class", File: "pkg/controller/informers.go",
		Old:     "		if o.Continue = page.GetContinue(); o.Continue == \"\" {\n			return nil\n		}\n",
		New:     "		return nil\n",
		Package: control, Test: "TestReconcileClasses_Unwanted_RemovedAfterGraceUnlessInUse",
	},
	{
		Name: "a server that drops extended resource names is written to for ever", File: "pkg/controller/classes.go",
		Old: "k.dropsResourceNames = made.Spec.ExtendedResourceName == nil", New: "k.dropsResourceNames = false",
		Package: control, Test: "TestReconcileClasses_ServerDropsExtendedResourceNames_NotWrittenAgain",
	},
	{
		Name: "a class that somebody made and removed in a moment is forgotten", File: "pkg/controller/classes.go",
		Old:     "			k.made[want.Name] = time.Now()\n			return cacheLag, nil\n",
		New:     "			return 0, nil\n",
		Package: control, Test: "TestController_ServerFails_Converges",
	},
	{
		Name: "a failed write is not tried again", File: "pkg/controller/controller.go",
		Old: "		l.queue.AddRateLimited(t)\n", New: "",
		Package: control, Test: "TestController_ServerFails_Converges",
	},
	{
		Name: "labels are planned by half a pool", File: "pkg/controller/labels.go",
		Old: "if !pool.Whole {", New: "if false {",
		Package: control, Test: "TestLabel_PoolIncomplete_ChangesNothing",
	},
	{
		Name: "a label that somebody else wrote is taken over", File: "pkg/nodelabels/labels.go",
		Old: "present && written && now == last, !present:", New: "present && now != value, present && written && now == last, !present:",
		Package: control, Test: "TestLabel_NodeComesAndGoes_OnlyOwnLabelsChange",
	},
	{
		Name: "an unhealthy device has a shape of its own", File: "pkg/fleet/shape.go",
		Old: "	d.Taints = rest\n", New: "	_ = rest\n",
		Package: "./pkg/fleet", Test: "TestShapes_UnhealthyDevice_SameShape",
	},
	{
		Name: "a watch that is stopped leaves what trims it behind", File: "pkg/controller/informers.go",
		Old: "t.stop = sync.OnceFunc(func() { close(t.stopped) })", New: "t.stop = sync.OnceFunc(func() {})",
		Package: control, Test: "TestTrim_Bookmark_KeepsAnnotations",
	},
	{
		Name: "watching counts as holding in the cluster metrics", File: "pkg/controller/clustermetrics.go",
		Old: "if r.AdminAccess == nil || !*r.AdminAccess {", New: "if r.AdminAccess == nil || *r.AdminAccess {",
		Package: control, Test: "TestCluster_ClaimsChange_MetricsFollow",
	},
	{
		Name: "the webhook that only warns denies", File: "pkg/controller/webhook.go",
		Old: "webhook(view, m, \"advise\", false)", New: "webhook(view, m, \"advise\", true)",
		Package: control, Test: "TestWebhooks_InvalidClaim_AdmitDeniesAdviseWarns",
	},
	{
		Name: "a bug of a review denies what the driver has no part in", File: "pkg/controller/webhook.go",
		Old: "				if binding {\n					result, answer =", New: "				{\n					result, answer =",
		Package: control, Test: "TestWebhooks_Panic_OnlyAdmitDenies",
	},
	{
		Name: "a new certificate is served before API servers trust it", File: "pkg/controller/certificate.go",
		Old: "if rest := trustDelay - time.Since(c.pendingSince); rest > 0 {", New: "if rest := trustDelay - time.Since(c.pendingSince); rest > trustDelay {",
		Package: control, Test: "TestCertificate_SecretChanges_LastWholePairIsServed",
	},
	{
		Name: "a new authority replaces the old one at once", File: "pkg/controller/certificate.go",
		Old: "for n := 1; n < maxAuthorities; {", New: "for n := maxAuthorities; n < maxAuthorities; {",
		Package: control, Test: "TestCertificate_Damaged_RepairedAndAlwaysTrusted",
	},
	{
		Name: "a certificate is not renewed in time", File: "pkg/controller/certificate.go",
		Old: "CurrentTime: time.Now().Add(renewBefore)", New: "CurrentTime: time.Now()",
		Package: control, Test: "TestCertificate_NearItsEnd_RenewedWhileRunning",
	},
	{
		Name: "the finalizers of a claim are reviewed", File: "pkg/admission/review.go",
		Old: "if request.Operation == admissionv1.Update || request.SubResource != \"\" {", New: "if request.SubResource != \"\" {",
		Package: reviews, Test: "TestReview_UpdateOrDelete_IsNotHeldUp",
	},
	{
		Name: "classes are not tried on other drivers' devices", File: "pkg/admission/class.go",
		Old: "candidate{nil, 0, 1 + len(kinds), cel.Device{Driver: \"other.example.com\"}}", New: "candidate{nil, 0, 1 + len(kinds), v.minimal(gpu.KindGPU)}",
		Package: reviews, Test: "TestReview_InvalidObject_IsDenied",
	},
	{
		Name: "a certain board is searched among one of each shape", File: "pkg/admission/feasibility.go",
		Old: "case v.identified(q.all()):", New: "case false:",
		Package: reviews, Test: "TestReview_UnsatisfiableObject_Warns",
	},
	{
		Name: "a node whose kubelet starts is missing at once", File: "pkg/controller/clusterview.go",
		Old: "rest := r.grace - time.Since(s.at)", New: "rest := -time.Since(s.at)",
		Package: control, Test: "TestRecent_GraceOver_ShapeForgotten",
	},
	{
		Name: "the device of an ending claim is refused at once", File: "pkg/kubeletplugin/service.go",
		Old: "errors.As(err, &held) && s.ending(ctx, held.Claim) {", New: "errors.As(err, &held) && false {",
		Package: "./pkg/kubeletplugin", Test: "TestPlugin_DeviceOfEndingClaim_IsWaitedFor",
	},
}
