// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// gpuMutations change work on GPUs: NVML, scans, partitions, shares and settings.
var gpuMutations = []Mutation{
	{
		Name: "one answer without a recovery action ends a fault", File: "pkg/gpu/health/health.go",
		Old: "const cleanPolls = 2", New: "const cleanPolls = 1",
		Package: "./pkg/gpu/health", Test: "TestPoll_Sequences_EndFaultsAfterTwoCleanPolls",
	},
	{
		Name: "a poll that failed counts as an answer", File: "pkg/gpu/inventory/gpu.go",
		Old: ".Health(); err == nil {", New: ".Health(); err == nil || h.Recovery == 0 {",
		Package: "./pkg/gpu/inventory", Test: "TestScan_HealthQueryFails_KeepsGPUAndReadsNothing",
	},
	{
		Name: "one faulty GPU taints the devices of all", File: "pkg/node/resourceslices/gpustate.go",
		Old: "unhealthy: conditions[g.PCIAddress]}", New: "unhealthy: conditions[s.GPUs[min(1, len(s.GPUs)-1)].PCIAddress]}",
		Package: "./pkg/node/resourceslices", Test: "TestBuild_FaultyGPU_TaintsItsDevicesOnly",
	},
	{
		Name: "a partition is made though an external one stands there", File: "pkg/partition/mig/executor.go",
		Old: "		return obstructed(obstacles)\n	})\n}\n\nfunc (x *Executor) Apply", New: "		return nil\n	})\n}\n\nfunc (x *Executor) Apply",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "an external partition is not marked as one", File: "pkg/partition/mig/executor.go",
		Old: "			d.Partition.External = true\n", New: "",
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
		Name: "a failed read counts as a missing GPU", File: "internal/nvml/sessionpool/sessionpool.go",
		Old: "return errors.Is(err, errNoGPU) ||", New: "return err != nil ||",
		Package: partitions, Test: "TestExecutor_CallOfNVMLFailsOrHangs_LosesAndLeaksNothing",
	},
	{
		Name: "one answer is enough to give up a partition", File: "internal/nvml/sessionpool/sessionpool.go",
		Old: "	for range 2 {", New: "	for range 1 {",
		Package: partitions, Test: "TestExecutor_CallOfNVMLFailsOrHangs_LosesAndLeaksNothing",
	},
	{
		Name: "NVML that hangs is opened again", File: "internal/nvml/sessionpool/sessionpool.go",
		Old: "if fresh = c == nil; fresh {", New: "if fresh = true; fresh {",
		Package: "./internal/nvml/sessionpool", Test: "TestWith_NVMLHangs_FailsAtLimitAndRecovers",
	},
	{
		Name: "Unprepare fails while the supervisor hangs", File: "pkg/claim/executor/mps/executor.go",
		Old: " || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {", New: " {",
		Package: partitions, Test: "TestExecutor_CallOfNVMLFailsOrHangs_LosesAndLeaksNothing",
	},
	{
		Name: "servers run on after their daemon and its supervisor", File: "internal/mpsd/supervisor/directory.go",
		Old: "err != nil && !n.leftServers()", New: "err != nil",
		Package: "./internal/mpsd/supervisor", Test: "TestKill_DaemonGone_EndsItsServersOnly",
	},
	{
		Name: "an odd error of a description withdraws a GPU", File: "pkg/gpu/inventory/gpu.go",
		Old: "	if sessionpool.IsGone(err) {\n", New: "	if sessionpool.IsGone(err) || err != nil {\n",
		Package: "./pkg/gpu/inventory", Test: "TestScan_AnyCallFails_WithdrawsGPUOnlyIfUnusable",
	},
	{
		Name: "a pending MIG mode is not refused", File: "pkg/partition/mig/mode.go",
		Old: "	if pending {\n		return &", New: "	if pending && current {\n		return &",
		Package: partitions, Test: "TestPrepare_MIGModePending_Refused",
	},
	{
		Name: "an administrator's MIG mode on a whole GPU is not refused", File: "pkg/partition/mig/mode.go",
		Old: "case scanned.MIG.Enabled:", New: "case scanned.MIG.Enabled && x.o.AdoptExternal:",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a creation that timed out counts as none", File: "pkg/partition/mig/partition.go",
		Old: "	case exact != nil && !errors.Is(cause, nvml.InsufficientResources):\n		return exact, nil\n", New: "	case exact != nil && errors.Is(cause, plan.ErrUnchanged):\n		return exact, nil\n",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a mode is switched on without a record", File: "pkg/partition/mig/mode.go",
		Old: "	if err := x.modes.Put(r); err != nil {\n		return err\n	}\n", New: "	_ = r\n",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "the whole is handed out of a GPU in MIG mode", File: "pkg/partition/mig/mode.go",
		Old: "	return x.modes.Restore(d.PCIAddress, d.UUID, true, toFound)\n", New: "	return nil\n",
		Package: partitions, Test: "TestExecutor_RandomMoves_KeepsInvariants",
	},
	{
		Name: "a capability is left out of the container", File: "internal/driverroot/partition.go",
		Old: "[]string{instance, filepath.Join(", New: "[]string{filepath.Join(",
		Package: "./internal/driverroot", Test: "TestGPU_Partition_AddsTwoCapabilities",
	},
	{
		Name: "a claim that ends is taken for another writer of the compute mode", File: "pkg/claim/executor/mps/watcher.go",
		Old: "			mode := w.wrongMode(d)\n			if mode == nil || len(clients(now, d.Name)) == 0 {", New: "			mode := new(nvml.ComputeDefault)\n			if now != nil {",
		Package: "./pkg/claim/executor/mps", Test: "TestScan_ClaimUnpreparedMeanwhile_ReportsNothing",
	},
	{
		Name: "a daemon at rest may give any answer", File: "internal/mpsd/supervisor/limits.go",
		Old: "return err == nil && slices.Equal(strings.Fields(got)", New: "return err == nil || slices.Equal(strings.Fields(got)",
		Package: "./internal/mpsd/supervisor", Test: "TestUnchanged_AnyAnswerDiffers_IsFalse",
	},
	{
		Name: "a daemon is left in its fault", File: "internal/mpsd/supervisor/daemon.go",
		Old: "fine := !d.faulty && ", New: "fine := ",
		Package: "./internal/mpsd/supervisor", Test: "TestRunOnce_AnswerMissedDuringFault_SharesStartAfterwards",
	},
	{
		Name: "servers are listed before the default limit changes", File: "internal/mpsd/supervisor/limits.go",
		Old: "	if err := l.meet(ctx, defaults); err != nil {\n		return err\n	}\n", New: "	defer func() { _, _ = l.set(ctx, defaults) }()\n",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_ServerStartsBetweenCommands_HasItsLimits",
	},
	{
		Name: "a server in start keeps the limits of an earlier share", File: "internal/mpsd/supervisor/limits.go",
		Old: "		for _, pid := range children {\n", New: "		for _, pid := range children[:0] {\n",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_ServerStartsBetweenCommands_HasItsLimits",
	},
	{
		Name: "the limits of an earlier share are not set again", File: "internal/mpsd/supervisor/daemon.go",
		Old: "			l.want(want)\n", New: "			met := l.met\n			l.want(want)\n			l.met = met\n",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_ServerStartsBetweenCommands_HasItsLimits",
	},
	{
		Name: "the memory limit is not read back", File: "internal/mpsd/supervisor/limits.go",
		Old: "	case isSize(is.memory, is.mib):\n", New: "	case is.memory != \"\":\n",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_LimitsNotConfirmed_ReturnsError",
	},
	{
		Name: "a child of the daemon that is never a server stops all shares", File: "internal/mpsd/supervisor/limits.go",
		Old: " && l.late[pid] < maxWaits {", New: " {",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_ChildIsNeverAServer_SharesStartLater",
	},
	{
		Name: "an unknown form of limits stops all shares", File: "internal/mpsd/supervisor/limits.go",
		Old: "	case server == defaults && hasNumber(is.memory) && !sizeForm.MatchString(is.memory):\n", New: "	case false:\n",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_UnknownFormOfLimits_SetAndNotCompared",
	},
	{
		Name: "the limit of SMs is not read back", File: "internal/mpsd/supervisor/limits.go",
		Old: "		math.Abs(percent-float64(l.threads)) >= 1 {", New: "		math.IsNaN(percent) {",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_LimitsNotConfirmed_ReturnsError",
	},
	{
		Name: "a server that cannot be read from the list is ignored", File: "internal/mpsd/supervisor/limits.go",
		Old: "		if err != nil || pid <= 0 {\n			return nil, ", New: "		if err != nil || pid <= 0 {\n			continue\n		}\n		if false {\n			return nil, ",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_LimitsNotConfirmed_ReturnsError",
	},
	{
		Name: "a server that ends while its limits change fails a claim", File: "internal/mpsd/supervisor/limits.go",
		Old: "const maxAttempts = 3", New: "const maxAttempts = 1",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_ServerEndsBetweenCommands_Succeeds",
	},
	{
		Name: "a larger share without a limit keeps that of a smaller one", File: "internal/mpsd/supervisor/limits.go",
		Old: "			is.mib = noLimit\n", New: "",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_ServerStartsBetweenCommands_HasItsLimits",
	},
	{
		Name: "servers that the supervisor has not seen are not met later", File: "internal/mpsd/supervisor/daemon.go",
		Old: "			pause, recheck = 2*pause, nil\n", New: "			continue\n",
		Package: "./internal/mpsd/supervisor", Test: "TestRunOnce_ServerSeenLate_GetsLimitsLater",
	},
	{
		Name: "a process with a daemon's old number is ended", File: "internal/mpsd/supervisor/directory.go",
		Old: "err == nil && now != n.Started ||", New: "now == \"\" && n.PID == 0 ||",
		Package: "./internal/mpsd/supervisor", Test: "TestNew_DaemonOfKilledSupervisor_EndsOnlyThatProcess",
	},
	{
		Name: "one wrong answer of NVML means no driver", File: "pkg/gpu/inventory/inventory.go",
		Old: " && !i.kernel().HasDriver() {", New: " {",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_AnyCallFails_OtherGPUsAndDriverStay",
	},
	{
		Name: "one odd answer about a GPU counts", File: "pkg/gpu/inventory/repeat.go",
		Old: " || last.doubted[was.PCIAddress] ||", New: " || true ||",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_AnyCallFails_OtherGPUsAndDriverStay",
	},
	{
		Name: "an odd first scan counts", File: "pkg/gpu/inventory/watch.go",
		Old: "case first && !repeated && now.repeats():", New: "case first && !repeated && now.repeats() && repeats > 0:",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_AnyCallFails_OtherGPUsAndDriverStay",
	},
	{
		Name: "a missing /proc is a missing driver", File: "internal/nvml/kernel.go",
		Old: "!errors.Is(procErr, fs.ErrNotExist) || ", New: "!errors.Is(procErr, fs.ErrNotExist) && ",
		Package: "./internal/nvml", Test: "TestKernel_AnyListThere_IsNotAbsent",
	},
	{
		Name: "NVML without an answer is a node without GPUs", File: "pkg/node/kubeletplugin/publishing/node.go",
		Old: "		s.Driver.Version == \"\" {", New: "		s.Driver.Version == n.name {",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestNode_NVMLHasNotAnswered_BuildsNothingForAMinute",
	},
	{
		Name: "no answer of NVML at the start is a missing driver", File: "pkg/gpu/inventory/watch.go",
		Old: "if err == nil || errors.Is(err, ErrNoDriver) {", New: "if !errors.Is(err, nvml.ErrReplaced) {",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_FirstScanFails_StoresNothing",
	},
	{
		Name: "an unreadable record of faults is none", File: "pkg/node/health/tracker/tracker.go",
		Old: "health.New([]gpu.Fault{unknown}), true", New: "health.New(nil), true",
		Package: "./pkg/node/health/tracker", Test: "TestTracker_RecordUnreadable_GPUKeepsAFault",
	},
	{
		Name: "an unreadable record of faults evicts pods", File: "pkg/gpu/health/health.go",
		Old: "Usable: true, NeverEvicts: true},", New: "Usable: true},",
		Package: "./cmd/dra-kubelet-plugin/flags", Test: "TestParse_InvalidValue_NamesFlag",
	},
	{
		Name: "a rotten record of faults outlives every boot", File: "pkg/node/health/tracker/tracker.go",
		Old: "		was.stale, was.unread = true, false\n", New: "",
		Package: "./pkg/node/health/tracker", Test: "TestTracker_RecordUnreadable_GPUKeepsAFault",
	},
	{
		Name: "two clean scans end an unreadable fault", File: "pkg/gpu/health/health.go",
		Old: "[]string{Memory, Named, UnreadableRecord}", New: "[]string{Memory, Named}",
		Package: "./pkg/node/health/tracker", Test: "TestTracker_RecordUnreadable_GPUKeepsAFault",
	},
	{
		Name: "a listed instance is left out of NVML's list", File: "internal/nvml/native/query.go",
		Old: "		if err != nil {\n			return nil, err\n		}\n		if _, seen", New: "		if err != nil {\n			continue\n		}\n		if _, seen",
		Package: "./internal/nvml/native", Test: "TestInOrder_InstanceVanishes_ListsAgain",
	},
	{
		Name: "an instance that NVML lists counts as destroyed", File: "pkg/partition/mig/instances.go",
		Old: "	if nvml.Vanished(err) {\n		out, err = list()\n", New: "	if nvml.Vanished(err) {\n		err = nil\n",
		Package: partitions, Test: "TestExecutor_CallOfNVMLFailsOrHangs_LosesAndLeaksNothing",
	},
	{
		Name: "an old list of MIG devices decides about a partition", File: "pkg/partition/mig/instances.go",
		Old: "	if !slices.Equal(listed, there) {", New: "	if len(there) < 0 {",
		Package: partitions, Test: "TestPartition_OfAnotherProcess_IsNeitherLostNorLeaked",
	},
	{
		Name: "the place of a partition that is not destroyed is given to a claim", File: "pkg/partition/mig/executor.go",
		Old: "			return p.Placement().Overlaps(d.Partition.Placement())\n", New: "			return p.Profile == \"\"\n",
		Package: partitions, Test: "TestUnprepare_DestructionFailsWithoutProcess_ClaimEndsAndItsPlaceIsBlocked",
	},
	{
		Name: "an adopted mode is switched off by a reset that is not allowed", File: "pkg/partition/mig/mode.go",
		Old: "	case architecture >= nvml.ArchHopper, x.o.AllowReset:", New: "	case architecture >= nvml.ArchHopper, x.o.AllowReset, !on:",
		Package: partitions, Test: "TestPrepare_AdoptedModeNeedsReset_SwitchedOnlyIfAllowed",
	},
	{
		Name: "one odd field hides a GPU's health", File: "internal/nvml/native/health.go",
		Old: "	default:\n		return without, nil", New: "	default:\n		return 0, err",
		Package: "./internal/nvml/conformancetest", Test: "TestHealth_FieldHasCode_CostsThatFieldOnly",
	},
	{
		Name: "an instance that vanished during a scan is a fault", File: "pkg/gpu/inventory/mig.go",
		Old: "if nvml.Vanished(err) {", New: "if nvml.Vanished(err) && m == nil {",
		Package: "./pkg/gpu/inventory", Test: "TestScan_InstanceDestroyedMeanwhile_ReadsOthers",
	},
	{
		Name: "a device plugin that restarts frees its GPUs", File: "pkg/node/kubeletplugin/podresources/deviceplugins.go",
		Old: "now.Sub(s.at) >= servedGrace", New: "now.Sub(s.at) >= 0",
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestDevicePlugins_Polls_ListPodsWhileGPUsAreServed",
	},
	{
		Name: "the kubelet's error forgets what device plugins serve", File: "pkg/node/kubeletplugin/podresources/deviceplugins.go",
		Old: "		d.reportSilence(err)\n		return\n", New: "		d.reportSilence(err)\n		served = nil\n",
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestDevicePlugins_KubeletFails_ForgetsNothing",
	},
	{
		Name: "a new process takes the kubelet's silence for an answer", File: "pkg/node/kubeletplugin/podresources/deviceplugins.go",
		Old: "		d.reportSilence(err)\n		return\n", New: "		d.reportSilence(err)\n		d.known = true\n		return\n",
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestDevicePlugins_NewProcess_NoAnswerIsNotAbsent",
	},
	{
		Name: "a new process does not know what device plugins served", File: "pkg/node/kubeletplugin/podresources/deviceplugins.go",
		Old: "for address, resource := range stored {", New: "for address, resource := range map[string]string(nil) {",
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestDevicePlugins_NewProcess_NoAnswerIsNotAbsent",
	},
	{
		Name: "the grace of a device plugin begins before the GPU is there", File: "pkg/node/kubeletplugin/podresources/deviceplugins.go",
		Old: "scanned && s.at.IsZero() {", New: "(scanned || true) && s.at.IsZero() {",
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestDevicePlugins_NewProcess_NoAnswerIsNotAbsent",
	},
	{
		Name: "served GPUs are not recorded", File: "pkg/node/kubeletplugin/podresources/deviceplugins.go",
		Old: "	d.save(ctx, now)\n", New: "",
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestDevicePlugins_Served_IsRecordedWithTheBoot",
	},
	{
		Name: "a claim is prepared before the kubelet said what it assigns", File: "pkg/devicestate/overlap.go",
		Old: "		if !known {\n", New: "		if !known && false {\n",
		Package: state, Test: "TestPrepare_DevicePluginsUnknown_RefusedUnlessPrepared",
	},
	{
		Name: "an unknown claim is on no unreadable GPU", File: "pkg/node/kubeletplugin/podresources/usage.go",
		Old: "return found != nil && !taken[found[1]]", New: "return found != nil && !taken[found[1]] && len(snapshot.GPUs) > 1",
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestUsage_OpenDeviceNodes_NameTheProcess",
	},
	{
		Name: "a scan waits for a GPU that hangs", File: "pkg/gpu/inventory/inventory.go",
		Old: "			if silent {\n", New: "			if silent && s.hangs {\n",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_OneGPUHangs_OthersDelivered",
	},
	{
		Name: "a GPU that hangs is withdrawn", File: "pkg/gpu/inventory/watch.go",
		Old: "i.keepSilent(&now.snapshot, known)", New: "i.keepSilent(&now.snapshot, gpu.Snapshot{})",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_OneGPUHangs_OthersDelivered",
	},
	{
		Name: "a GPU that hangs counts as healthy", File: "pkg/node/kubeletplugin/publishing/inputs.go",
		Old: "		case g.Silent:\n", New: "		case g.Silent && in.unknown:\n",
		Package: "./pkg/node/kubeletplugin", Test: "TestPlugin_OneGPUHangs_IsTaintedAlone",
	},
	{
		Name: "a GPU that hangs keeps the XIDs of all away", File: "pkg/node/health/watcher/watcher.go",
		Old: "			late, open = answers, false\n", New: "",
		Package: "./pkg/node/health/watcher", Test: "TestRun_OneGPUHangs_OthersXIDsArrive",
	},
	{
		Name: "GPUs stay healthy while NVML hangs", File: "pkg/gpu/inventory/watch.go",
		Old: "if silent++; silent == pollsToUnknown {", New: "if silent++; silent < 0 {",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_NVMLHangs_ReportsHealthUnknown",
	},
	{
		Name: "GPUs stay healthy while NVML fails", File: "pkg/gpu/inventory/watch.go",
		Old: "if silent++; silent >= pollsToUnknown {", New: "if silent++; silent < 0 {",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_NVMLFailsForLong_ReportsHealthUnknown",
	},
	{
		Name: "two supervisors use one directory", File: "internal/mpsd/supervisor/supervisor.go",
		Old: "filepath.Join(o.Dir, lockFile), 0)", New: "filepath.Join(o.Dir, lockFile+fmt.Sprintf(\"%p\", &o)), 0)",
		Package: "./internal/mpsd/supervisor", Test: "TestNew_SecondSupervisor_WaitsForTheFirst",
	},
	{
		Name: "a supervisor that hung ends the next claim's daemon", File: "internal/mpsd/mpsd.go",
		Old: "time.Duration(until)-now)", New: "time.Duration(until)-now+time.Minute)",
		Package: "./internal/mpsd/supervisor", Test: "TestStop_SupervisorHangs_ClaimsAfterwardsKeepTheirDaemon",
	},
	{
		Name: "a daemon is limited to the smaller share", File: "pkg/claim/executor/mps/executor.go",
		Old: "if a == nil || b != nil && *a >= *b {", New: "if a == nil || b != nil && *a <= *b {",
		Package: "./pkg/claim/executor/mps", Test: "TestDaemon_DevicesOfOlderRecords_KeepTheirLimits",
	},
	{
		Name: "the first of two co-tenants to leave destroys the partition", File: "pkg/partition/mig/executor.go",
		Old: "case d.Partition.External, slices.ContainsFunc(w.CoTenants(), uses(d.Partition)):", New: "case d.Partition.External, slices.ContainsFunc(w.CoTenants()[:0], uses(d.Partition)):",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "the first of two co-tenants to leave ends the daemon", File: "pkg/claim/executor/mps/executor.go",
		Old: "return nil // The daemon keeps its limits", New: "continue // The daemon keeps its limits",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "a daemon is limited to the newest share", File: "pkg/claim/executor/mps/executor.go",
		Old: "out.MemoryLimit = loosest(out.MemoryLimit, s.Sharing.MemoryLimit)", New: "_ = loosest(out.MemoryLimit, s.Sharing.MemoryLimit)",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "a compute mode is set without a record", File: "pkg/claim/executor/mps/executor.go",
		Old: "			if err := x.modes.Put(r); err != nil {\n				return err\n			}\n", New: "			_ = r\n",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "a time slice is set without a record", File: "pkg/claim/executor/timeslice/timeslice.go",
		Old: "	if err := x.records.Put(r); err != nil {\n		return err\n	}\n	if err := x.tool.Set(", New: "	if err := x.tool.Set(",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a time slice is noted before it is set", File: "pkg/claim/executor/timeslice/timeslice.go",
		Old: "	r.Set = record.SetUnknown\n", New: "	r.Set = d.Sharing.Interval\n",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "an unneeded setting is restored again and again", File: "pkg/claim/executor/settings.go",
		Old: " || now.Before(state.next) {", New: " {",
		Package: partitions, Test: "TestReconcile_GPUUnused_RestoresMode",
	},
	{
		Name: "a share joins a claim that is half prepared", File: "pkg/claim/executor/failure.go",
		Old: "if !t.Committed {", New: "if false {",
		Package: partitions, Test: "TestPrepare_ShareOfHalfPreparedDevice_Refused",
	},
	{
		Name: "a daemon that starts anew has another pipe directory", File: "internal/mpsd/supervisor/daemon.go",
		Old: "		if err := emptied(filepath.Join(d.dir, name)); err != nil {\n", New: "		if err := errors.Join(os.RemoveAll(filepath.Join(d.dir, name)), os.Mkdir(filepath.Join(d.dir, name), 0o755)); err != nil {\n",
		Package: "./internal/mpsd/supervisor", Test: "TestSupervisor_DaemonDies_RestartsIt",
	},
	{
		Name: "GPUs that are not peers are grouped", File: "pkg/gpu/inventory/inventory.go",
		Old:     "	i.findPeers(session, s.GPUs, read)\n",
		New:     "	_ = i.findPeers\n",
		Package: "./pkg/gpu/inventory", Test: "TestScan_LinkFails_RemovesGroups",
	},
	{
		Name: "memory limits: only the last share of a container counts", File: "pkg/claim/memorylimit/memorylimit.go",
		Old: "sums[at].bytes += r.Bytes", New: "sums[at].bytes = r.Bytes",
		Package: "./pkg/claim/memorylimit", Test: "TestLimiter_Containers_HaveTheSumOfTheirShares",
	},
	{
		Name: "memory limits: a refused one lets the container start", File: "pkg/claim/memorylimit/memorylimit.go",
		Old: "l.reports.Report(refused)\n", New: "l.reports.Report(refused)\n\t\trefused = nil\n",
		Package: "./pkg/claim/memorylimit", Test: "TestLimiter_AnyAnswer_RefusesOrSaysSo",
	},
	{
		Name: "memory limits: equal shares of a claim are one", File: "internal/memorylimit/requests/requests.go",
		Old: "if r.Share != \"\" {", New: "if false {",
		Package: "./pkg/claim/memorylimit", Test: "TestLimiter_EqualSharesOfAClaim_AddUp",
	},
	{
		Name: "memory limits: a share has no ID in its hook", File: "pkg/claim/plan/share.go",
		Old: "			return d.ShareID\n", New: "			return \"\"\n",
		Package: "./pkg/claim/plan", Test: "TestEqualShare_SharesOfAClaim_HaveIDsIfEqual",
	},
	{
		Name: "memory limits: a directory that was deleted stays away", File: "pkg/claim/memorylimit/memorylimit.go",
		Old:     "func (l *Limiter) serve(ctx context.Context) {\n	l.watch(ctx)\n",
		New:     "func (l *Limiter) serve(ctx context.Context) {\n	if l.watcher == nil {\n		l.watch(ctx)\n	}\n",
		Package: "./pkg/claim/memorylimit", Test: "TestLimiter_DirectoryDeleted_IsMadeAndWatchedAgain",
	},
	{
		Name: "memory limits: without a watcher there is no directory", File: "pkg/claim/memorylimit/memorylimit.go",
		Old:     "	err := l.files.Make()\n	if err == nil && l.watcher == nil {\n		l.watcher, err = fsnotify.NewWatcher()\n",
		New:     "	var err error\n	if l.watcher == nil {\n		if l.watcher, err = fsnotify.NewWatcher(); err == nil {\n			err = l.files.Make()\n		}\n",
		Package: "./pkg/claim/memorylimit", Test: "TestLimiter_NoWatcher_DirectoryIsMade",
	},
	{
		Name: "memory limits: each container of a claim is guaranteed the claim", File: "internal/nvml/native/device.go",
		Old: "SetMemoryLimits_v1(cgroup, 0, bytes)", New: "SetMemoryLimits_v1(cgroup, bytes, bytes)",
		Package: "./internal/nvml/conformancetest", Test: "TestMemoryLimit_DriversBeforeAndSince_SetOrRefuse",
	},
	{
		Name: "memory limits: one that the driver lost stays lost", File: "pkg/claim/memorylimit/memorylimit.go",
		Old: "at.address == g.PCIAddress }", New: "false }",
		Package: "./pkg/claim/memorylimit", Test: "TestLimiter_GPULosesLimits_SetAgain",
	},
	{
		Name: "memory limits: one that is lost during an attempt stays lost", File: "pkg/claim/memorylimit/memorylimit.go",
		Old: "	now.due = was.due", New: "	_ = was.due",
		Package: "./pkg/claim/memorylimit", Test: "TestLimiter_LostDuringAnAttempt_SetAgain",
	},
	{
		Name: "memory limits: one that failed is not tried again", File: "pkg/claim/memorylimit/memorylimit.go",
		Old: "return o.refused })", New: "return false })",
		Package: "./pkg/claim/memorylimit", Test: "TestLimiter_SetFails_IsTriedAgain",
	},
	{
		Name: "memory limits: an unreadable answer lets the container start", File: "internal/memorylimit/requests/requests.go",
		Old: "case err == nil && json.Unmarshal(data, &a) != nil:", New: "case err == nil && json.Unmarshal(data, &a) != nil && false:",
		Package: "./internal/memorylimit/requests", Test: "TestAsk_AnswerUnreadable_IsAnErrorWithItsText",
	},
	{
		Name: "memory limits: a flag of a newer release keeps containers from a restart", File: "internal/memorylimit/memorylimit.go",
		Old: "		return fs.Lookup(name) == nil\n", New: "		return name == \"\"\n",
		Package: "./cmd/memory-limit-hook", Test: "TestRun_ArgumentsOfAnyRelease_AskForTheLimit",
	},
	{
		Name: "a claim fails while the daemon before ends", File: "internal/mpsd/supervisor/supervisor.go",
		Old: "for errors.Is(err, errEnding) {", New: "for false {",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_DaemonEnds_StartsTheNext",
	},
	{
		Name: "memory limits: partitions have them", File: "pkg/claim/plan/parameters.go",
		Old: "d.Kind == gpu.KindGPU && d.Partial() && g.MemoryLimits", New: "d.Partial() && g.MemoryLimits",
		Package: "./pkg/claim/plan", Test: "TestMake_Share_HasMemoryAndSharing",
	},
}
