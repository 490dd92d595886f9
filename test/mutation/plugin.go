// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// pluginMutations change the kubelet plugin and its slices.
var pluginMutations = []Mutation{
	{
		Name: "a plugin that starts withdraws the GPUs of an NVML that fails", File: "pkg/gpu/inventory/watch.go",
		Old: "				now.snapshot = known\n", New: "",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_NVMLDoesNotAnswerAtStart_EarlierSnapshotStands",
	},
	{
		Name: "a plugin that starts withdraws the GPUs of an NVML that hangs", File: "pkg/gpu/inventory/watch.go",
		Old: "last.err, last.snapshot, first = ErrHealthUnknown, known, false", New: "last.err, first = ErrHealthUnknown, false",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_NVMLDoesNotAnswerAtStart_EarlierSnapshotStands",
	},
	{
		Name: "a plugin that starts withdraws a GPU that hangs", File: "pkg/gpu/inventory/watch.go",
		Old: "i.keepSilent(&now.snapshot, known)", New: "i.keepSilent(&now.snapshot, last.snapshot)",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_OneGPUHangsAtStart_KeepsItsEarlierState",
	},
	{
		Name: "a GPU that was silent before a restart is not after it", File: "pkg/gpu/inventory/earlier.go",
		Old: "if g.Silent {", New: "if false {",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_OneGPUHangsAtStart_KeepsItsEarlierState",
	},
	{
		Name: "the GPUs of an earlier boot are published", File: "pkg/gpu/inventory/earlier.go",
		Old: " s.Boot != boot ||\n", New: "\n",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_NVMLDoesNotAnswerAtStart_EarlierSnapshotStands",
	},
	{
		Name: "parts come from another GPU each time", File: "pkg/node/resourceslices/build.go",
		Old: "	slices.Reverse(serving)\n", New: "",
		Package: "./pkg/cluster/demand", Test: "TestServingGPUs_PartsOneAfterTheOther_FillAGPUFirst",
	},
	{
		Name: "a process without file descriptors finds another driver", File: "pkg/node/kubeletplugin/sockets.go",
		Old: "case errors.Is(err, syscall.EAGAIN):", New: "case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED):",
		Package: "./pkg/node/kubeletplugin", Test: "TestOtherDriver_ConnectFails_OnlyAListenerIsAnOwner",
	},
	{
		Name: "a busy driver is not another one", File: "pkg/node/kubeletplugin/sockets.go",
		Old: "case errors.Is(err, syscall.EAGAIN):", New: "case false:",
		Package: "./pkg/node/kubeletplugin", Test: "TestOtherDriver_ConnectFails_OnlyAListenerIsAnOwner",
	},
	{
		Name: "a device node of before a reload is used", File: "internal/driverroot/nodes.go",
		Old: "			edits.DeviceNodes[i].Major, edits.DeviceNodes[i].Minor = n.Major, n.Minor\n", New: "",
		Package: "./internal/driverroot", Test: "TestNodes_AnyStateOfDev_ContainerHasTheKernels",
	},
	{
		Name: "a GPU that is bound again leaves the session for XIDs open", File: "pkg/node/health/watcher/watcher.go",
		Old: " + \"\\n\" + inventory.Bindings(w.o.SysRoot)", New: " + inventory.Bindings(\"/nonexistent\")",
		Package: "./pkg/node/health/watcher", Test: "TestRun_GPUBoundAgainDuringOpen_OpensAgain",
	},
	{
		Name: "a pass that cannot list the claims is repeated at once", File: "pkg/node/kubeletplugin/recovery.go",
		Old: "again = began && r.engine.Renumbered()", New: "again = (began || true) && r.engine.Renumbered()",
		Package: "./pkg/node/kubeletplugin", Test: "TestRecovery_ClaimsNotListed_NextPassWaits",
	},
	{
		Name: "GPUs that are bound again start no recovery", File: "pkg/node/kubeletplugin/recovery.go",
		Old: "again = began && r.engine.Renumbered()", New: "again = began && false",
		Package: "./pkg/node/kubeletplugin", Test: "TestPlugin_MinorNumbersChange_SpecFollows",
	},
	{
		Name: "numbers that change without an event of the kernel are not compared", File: "pkg/node/kubeletplugin/recovery.go",
		Old: "r.engine.Incomplete() || r.engine.Renumbered()", New: "r.engine.Incomplete()",
		Package: "./pkg/node/kubeletplugin", Test: "TestRecovery_NumbersChange_ComparedAtEventsAndAtIntervals",
	},
	{
		Name: "dropped caches of the kernel look like a reload", File: "pkg/gpu/inventory/numbers.go",
		Old: "s.Ino, s.Btime.Sec, s.Btime.Nsec)", New: "s.Ino, s.Ctime.Sec, s.Ctime.Nsec)",
		Package: "./pkg/gpu/inventory", Test: "TestBindings_CachesDropped_AreEqual",
	},
	{
		Name: "minor numbers of before a binding stay", File: "pkg/gpu/inventory/numbers.go",
		Old: "bindings == \"\" || bindings != m.bindings", New: "bindings == \"\"",
		Package: "./pkg/gpu/inventory", Test: "TestMinorNumbers_BindingsSame_FilesNotReadAgain",
	},
	{
		Name: "processes are read for GPUs without published partitions", File: "pkg/node/kubeletplugin/podresources/holders.go",
		Old: "placements != sharing.LaterPlacements && ", New: "",
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestHolders_PartitionsPublished_SearchedAtOnce",
	},
	{
		Name: "the files of a process that ran are not read again", File: "pkg/node/kubeletplugin/podresources/holders.go",
		Old: "known && p.state == state", New: "known",
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestHolders_ProcessDidNotRun_FilesNotReadAgain",
	},
	{
		Name: "a scan that finds other minor numbers starts no recovery", File: "pkg/devicestate/confirm.go",
		Old: "|| !maps.Equal(e.minors, minors)\n", New: "|| !maps.Equal(e.minors, minors) && false\n",
		Package: "./pkg/node/kubeletplugin", Test: "TestPlugin_MinorNumbersChange_SpecFollows",
	},
	{
		Name: "a GPU that was bound again looks as before", File: "pkg/gpu/inventory/numbers.go",
		Old: "s.Ino, s.Btime.Sec, s.Btime.Nsec)", New: "0*s.Ino, 0, 0)",
		Package: "./pkg/gpu/inventory", Test: "TestBindings_DriverOrGPUBoundAgain_Differs",
	},
	{
		Name: "a poll compares no minor numbers", File: "pkg/gpu/inventory/watch.go",
		Old: "	b.WriteString(i.minors.read(gpus, addresses, bindings))\n", New: "	_ = addresses\n",
		Package: "./pkg/gpu/inventory", Test: "TestWatch_MinorNumbersChange_ScansAtNextPoll",
	},
	{
		Name: "a GPU that hangs hides the numbers of the others", File: "pkg/gpu/inventory/numbers.go",
		Old: "context.Background(), minorLimit)", New: "context.Background(), 10000*minorLimit)",
		Package: "./pkg/gpu/inventory", Test: "TestMinorNumbers_OneGPUHangs_KeepsItsNumber",
	},
	{
		Name: "an unknown version of the scheduler counts as right", File: "pkg/wire/schedulerfault/schedulerfault.go",
		Old: "		return unknown\n", New: "		return nil\n",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestVersion_Answers_LeaveOutTheSafeFeatures",
	},
	{
		Name: "a prerelease counts as the release", File: "pkg/wire/schedulerfault/schedulerfault.go",
		Old: "if prerelease.MatchString(m[3]) {", New: "if prerelease.MatchString(m[3]) && false {",
		Package: "./pkg/wire/schedulerfault", Test: "TestParse_ReleasesVendorsAndPrereleases_CountAs",
	},
	{
		Name: "a vendor's version is none", File: "pkg/wire/schedulerfault/schedulerfault.go",
		Old: "([-+].*)?$`)", New: "([-].*)?$`)",
		Package: "./pkg/wire/schedulerfault", Test: "TestParse_ReleasesVendorsAndPrereleases_CountAs",
	},
	{
		Name: "a fault is no longer in the table", File: "pkg/wire/schedulerfault/table.go",
		Old: "	{\"shared-counters-ignored\", 36, 2, all, all, twice},\n", New: "",
		Package: "./pkg/wire/schedulerfault", Test: "TestOf_Versions_LeaveOut",
	},
	{
		Name: "the newest answer of the API servers counts at once", File: "pkg/node/kubeletplugin/publishing/version.go",
		Old: "v.now().Sub(at) < versionSettles", New: "v.now().Sub(at) < 0",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestVersion_Answers_LeaveOutTheSafeFeatures",
	},
	{
		Name: "a failed read forgets the version", File: "pkg/node/kubeletplugin/publishing/version.go",
		Old: "		v.failures++\n", New: "		v.failures++\n		v.last = schedulerfault.Version{}\n",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestVersion_Answers_LeaveOutTheSafeFeatures",
	},
	{
		Name: "reads of the version have no limit", File: "pkg/node/kubeletplugin/publishing/version.go",
		Old: "context.WithTimeout(ctx, versionLimit)", New: "context.WithCancel(ctx)",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestVersion_Answers_LeaveOutTheSafeFeatures",
	},
	{
		Name: "a fault of the scheduler is reported with each build", File: "pkg/node/kubeletplugin/publishing/version.go",
		Old: "	p.reported = reported\n", New: "",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestPublisher_VersionUnknown_ReportsAfterSomeReads",
	},
	{
		Name: "a shared GPU is offered whole because of the scheduler", File: "pkg/node/resourceslices/device.go",
		Old: "!b.o.SharedDevices && !b.o.HeldShares || b.o.Sharing", New: "!b.o.SharedDevices || b.o.Sharing",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestNode_SchedulerFaultUnderClaims_KeepsHeldDevicesUntilRelease",
	},
	{
		Name: "devices that claims held stay after the release", File: "pkg/node/kubeletplugin/publishing/inputs.go",
		Old: "dependsOnHeld || f.onlyForHeld(o.Held) ||", New: "dependsOnHeld ||",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestNode_SchedulerFaultUnderClaims_KeepsHeldDevicesUntilRelease",
	},
	{
		Name: "the setting of the scheduler's version has no effect", File: "pkg/node/kubeletplugin/plugin.go",
		Old: "SchedulerVersion: o.SchedulerVersion, ", New: "",
		Package: "./pkg/node/kubeletplugin", Test: "TestPlugin_SchedulerFault_PublishesWholeGPUsUnlessSet",
	},
	{
		Name: "a series that cannot be measured stands still", File: "pkg/node/usage/usage.go",
		Old: "(known && s.metric == &namespaceAllocated)", New: "known",
		Package: "./pkg/node/usage", Test: "TestCounters_Activity_IntegratedByWeight",
	},
	{
		Name: "a fault of groups makes a GPU unhealthy", File: "pkg/node/usage/rates.go",
		Old: "	return !known || !state.GroupsOnly\n", New: "	return !known || state.Name != \"\"\n",
		Package: "./pkg/node/usage", Test: "TestCounters_Faults_UnhealthyIfGPUIsUnavailable",
	},
	{
		Name: "nodes with different identities count as equal", File: "pkg/cluster/ask/alike.go",
		Old: "	if q.identities || len(", New: "	if len(",
		Package: "./pkg/cluster/why", Test: "TestAsk_PackedSlices_AnswersAsForWholeSlices",
	},
	{
		Name: "a reset is not remembered", File: "pkg/claim/executor/reset/reset.go",
		Old: "	r.Attempted = at\n", New: "	r.Attempted = at - pause\n",
		Package: "./pkg/claim/executor/reset", Test: "TestRestore_Crash_DoesNotResetAgain",
	},
	{
		Name: "a measurement that is absent is 0", File: "pkg/wire/metric/metric.go",
		Old: "	if value >= 0 { // False for NaN too.\n", New: "	if value = max(value, 0); true {\n",
		Package: "./pkg/node/metrics", Test: "TestDevicesCollector_Measurements_ServedInBaseUnits",
	},
	{
		Name: "a share has all of its device's use", File: "pkg/node/sampler/uses.go",
		Old: "		if len(of) == 1 {\n", New: "		if true {\n",
		Package: "./pkg/node/metrics", Test: "TestDevicesCollector_Measurements_ServedInBaseUnits",
	},
	{
		Name: "a file of a tenant counts as another claim's", File: "pkg/node/sampler/owners.go",
		Old: "is.Filesystem != m.filesystem || ", New: "",
		Package: "./pkg/node/sampler", Test: "TestMounted_FilesOfTenants_AreNoMetadata",
	},
	{
		Name: "a process has the claim of an earlier one with its PID", File: "pkg/node/sampler/owners.go",
		Old: "	if !ok || known.start != start {\n", New: "	if !ok {\n",
		Package: "./pkg/node/sampler", Test: "TestRead_PIDOfAnotherClaim_CountsThere",
	},
	{
		Name: "a GPU that hangs delays the others' measurements", File: "pkg/node/sampler/sampler.go",
		Old: "	case <-time.After(readLimit):\n", New: "	case <-time.After(1000 * readLimit):\n",
		Package: "./pkg/node/sampler", Test: "TestRead_GPUHangs_OthersAreMeasured",
	},
	{
		Name: "a reading begins during a switch of a MIG mode", File: "pkg/node/sampler/sampler.go",
		Old: "	case s.locks > 0:\n", New: "	case s.locks < 0:\n",
		Package: "./pkg/node/sampler", Test: "TestRead_NoTargetsOrLocked_CallsNothing",
	},
	{
		Name: "a held GPU that broke is withdrawn", File: "pkg/node/resourceslices/gpustate.go",
		Old: "		g.held = append(g.held, h)\n", New: "		if h.Device.Kind != gpu.KindGPU {\n			g.held = append(g.held, h)\n		}\n",
		Package: built, Test: "TestBuild_ConditionsAndHeldDevices_PublishesExpectedDevices",
	},
	{
		Name: "the last XID ends a fault", File: "pkg/gpu/health/health.go",
		Old:     "	if state != \"\" {\n		g = g.add(gpu.Fault{State: state, Cause: x.String()})\n",
		New:     "	if g.faults = nil; state != \"\" {\n		g = g.add(gpu.Fault{State: state, Cause: x.String()})\n",
		Package: "./pkg/gpu/health", Test: "TestEvent_Sequences_OnlyPollsEndFaults",
	},
	{
		Name: "the position in the kernel's log passes XIDs that health does not know", File: "pkg/node/health/kernellog/kernellog.go",
		Old: "	snapshot := r.o.Scans.Snapshot()\n", New: "	r.save(cursor{BootID: r.BootID, Next: r.Next})\n	snapshot := r.o.Scans.Snapshot()\n",
		Package: "./pkg/node/health/kernellog", Test: "TestRun_Killed_LosesNoXID",
	},
	{
		Name: "an XID that a program wrote to the kernel's log counts", File: "pkg/node/health/kernellog/decode.go",
		Old: "if priority < kernelLevels && fields[3]", New: "if priority >= 0*kernelLevels && fields[3]",
		Package: "./pkg/node/health/kernellog", Test: "TestDecode_Lines_OnlyTheKernelsXIDsCount",
	},
	{
		Name: "waits for XIDs that fail are repeated at once", File: "pkg/node/health/watcher/watcher.go",
		Old: "			pause = min(max(2*pause, firstPause), longestPause)\n", New: "			pause = firstPause\n",
		Package: "./pkg/node/health/watcher", Test: "TestRun_WaitsFail_BacksOff",
	},
	{
		Name: "a switch of a MIG mode waits for the XIDs of other GPUs", File: "pkg/node/health/watcher/watcher.go",
		Old: "	if !slices.Contains(l.set, address) {\n", New: "	if false {\n",
		Package: "./pkg/node/health/watcher", Test: "TestLock_GPUNotInSet_DoesNotWait",
	},
	{
		Name: "advice makes a GPU unavailable", File: "pkg/gpu/health/health.go",
		Old:     "	g.decides = r.Recovery != NoRecovery\n",
		New:     "	g.decides = r.Recovery != NoRecovery\n	if r.RemapPending {\n		g = g.add(gpu.Fault{State: Memory})\n	}\n",
		Package: "./pkg/gpu/health", Test: "TestAdvice_Readings_BeginsAndEnds",
	},
	{
		Name: "partitions of a cordoned GPU are not tainted", File: "pkg/node/resourceslices/device.go",
		Old: "		b.taintCordoned(&d, g)\n", New: "		if e.device.Kind == gpu.KindGPU {\n			b.taintCordoned(&d, g)\n		}\n",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestNode_CordonedGPU_PartitionsPublishedLaterAreTainted",
	},
	{
		Name: "a group with a cordoned GPU is not tainted", File: "pkg/node/resourceslices/group.go",
		Old: "		b.taintCordoned(&d, g.members...)\n", New: "",
		Package: built, Test: "TestBuild_CordonedGPU_NoNewClaimGetsAPartOfIt",
	},
	{
		Name: "a server without taints gets the devices of a cordoned GPU", File: "pkg/node/resourceslices/entries.go",
		Old: "	if b.withdrawn(g) {\n", New: "	if false {\n",
		Package: built, Test: "TestBuild_CordonedGPU_NoNewClaimGetsAPartOfIt",
	},
	{
		Name: "unknown cordons count as none", File: "pkg/node/kubeletplugin/publishing/node.go",
		Old: "served && cordoned &&", New: "served && (cordoned || true) &&",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestNode_CordonsUnknown_PublishesNothing",
	},
	{
		Name: "a cordon with another value counts as none", File: "pkg/wire/cordon.go",
		Old: "			effect = resourceapi.DeviceTaintEffectNoSchedule\n", New: "			continue\n",
		Package: built, Test: "TestParseCordons_Annotations_UnknownValuesCordonToo",
	},
	{
		Name: "an unmonitored GPU gets no new claims", File: "pkg/node/resourceslices/device.go",
		Old: "Key: UnmonitoredTaint, Effect: resourceapi.DeviceTaintEffectNone", New: "Key: UnmonitoredTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule",
		Package: built, Test: "TestBuild_UnmonitoredGPU_TaintsItsDevicesWithoutEffect",
	},
	{
		Name: "a running plugin keeps cleared faults", File: "pkg/node/health/tracker/tracker.go",
		Old: "k.gpu, k.stored = k.gpu.Cleared(), nil", New: "k.stored = nil",
		Package: "./pkg/node/health/tracker", Test: "TestClear_RunningPlugin_ForgetsFaults",
	},
	{
		Name: "an XID of the whole GPU reaches no partition", File: "pkg/node/kubeletplugin/reporting/xids.go",
		Old: "if e.GPUInstance < 0 || d.Kind", New: "if e.GPUInstance < 0 && d.Kind != gpu.KindMIG || d.Kind",
		Package: "./pkg/node/kubeletplugin/reporting", Test: "TestAffectedDevices_Partitions_OnlyThoseAtFault",
	},
	{
		Name: "an XID of one GPU taints all", File: "pkg/node/health/tracker/tracker.go",
		Old:     "	t.update(g, func(was health.GPU) health.GPU { return was.Event(code, t.o) })\n",
		New:     "	for _, k := range t.gpus {\n		k.gpu = k.gpu.Event(code, t.o)\n	}\n	t.update(g, func(was health.GPU) health.GPU { return was.Event(code, t.o) })\n",
		Package: "./pkg/node/health/tracker", Test: "TestTracker_XIDs_AreRememberedAndEndByPolls",
	},
	{
		Name: "a monitor is not tainted", File: "pkg/node/resourceslices/device.go",
		Old: "	d.Taints = append(d.Taints,\n		resourceapi.DeviceTaint{Key: wire.MonitorTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})\n", New: "",
		Package: built, Test: "TestBuild_ClassOfDriverAlone_AllocatesGPUsOnly",
	},
	{
		Name: "a report goes to a later claim of the same name", File: "pkg/node/kubeletplugin/reporting/events.go",
		Old: "				string(claim.UID) == typed.UID {", New: "				claim.UID != \"\" {",
		Package: "./pkg/node/kubeletplugin/reporting", Test: "TestEvents_Report_FindsClaimOrNode",
	},
	{
		Name: "a deleted hook stays away", File: "cmd/dra-kubelet-plugin/engine.go",
		Old: "h.installed && !errors.Is(err, fs.ErrNotExist) {", New: "h.installed && (err == nil || errors.Is(err, fs.ErrNotExist)) {",
		Package: "./cmd/dra-kubelet-plugin", Test: "TestHook_Deleted_InstalledAgain",
	},
	{
		Name: "a claim's name counts although its UID differs", File: "pkg/node/kubeletplugin/podresources/usage.go",
		Old: "if len(devices) == before {", New: "if len(devices) >= before {",
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestKubelet_AwayAndThere_AnswersOnlyWhenThere",
	},
	{
		Name: "the pod of a lost GPU gets no Event", File: "pkg/node/kubeletplugin/publishing/partitions.go",
		Old: "if p.Lost && p.PCIAddress == address {", New: "if p.Lost && p.PCIAddress == \"\" {",
		Package: "./pkg/node/kubeletplugin", Test: "TestPlugin_GPUsLost_SlicesFollowAndHeldStay",
	},
	{
		Name: "an unloaded driver loses the GPUs of claims", File: "pkg/gpu/snapshot.go",
		Old: "listed || s.Driver.Version == \"\" {", New: "listed {",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestNode_HeldGPUNotListed_IsLostUnlessDriverIsGone",
	},
	{
		Name: "a released claim's partition passes for external", File: "pkg/node/kubeletplugin/publishing/node.go",
		Old: "	n.owned, n.switched = n.ownedNow, n.switchedNow\n", New: "",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestNode_PartitionOwnedBeforeOrAfterTheScan_IsNotExternal",
	},
	{
		Name: "a scan of MPS daemons always reads all records", File: "pkg/claim/executor/mps/watcher.go",
		Old: "if len(list.Daemons)+len(changed) > 0 {", New: "if len(list.Daemons)+len(changed) >= 0 {",
		Package: "./pkg/claim/executor/mps", Test: "TestScan_NoMPS_ReadsNoRecords",
	},
	{
		Name: "the first slices wait for the informer", File: "pkg/node/kubeletplugin/publishing/first.go",
		Old: "len(found.Items) > 0 {", New: "len(found.Items) >= 0 {",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestPublisher_NodeWithoutSlices_DoesNotWaitForTheInformer",
	},
	{
		Name: "slices of an earlier session are created again", File: "pkg/node/kubeletplugin/publishing/first.go",
		Old: "len(found.Items) > 0 {", New: "len(found.Items) < 0 {",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestPublisher_NewerInstanceComesAndGoes_StopsAndPublishesAgain",
	},
	{
		Name: "first slices are created for a server with unknown features", File: "pkg/node/kubeletplugin/publishing/first.go",
		Old: "if !p.probed.Load() {", New: "if false {",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestPublisher_FeaturesUnknown_LeavesFirstSlicesToController",
	},
	{
		Name: "a server without counters gets partitions", File: "pkg/node/kubeletplugin/publishing/inputs.go",
		Old: "f.heldShares, f.counters\n", New: "f.heldShares, true\n",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestNode_ServerWithoutCounters_BuildsNothingThatOverlaps",
	},
	{
		Name: "a share can be of next to nothing", File: "pkg/node/resourceslices/catalogue.go",
		Old: "Min: bytes(sharing.MinMemory)", New: "Min: bytes(0 * sharing.MinMemory)",
		Package: built, Test: "TestBuild_AnyMemoryRequested_LimitsProcessToCharge",
	},
	{
		Name: "a process that computes on all GPUs is taken for an agent", File: "pkg/node/kubeletplugin/podresources/usage.go",
		Old: `isNode(file)("dev/nvidia-uvm")`, New: `file == ""`,
		Package: "./pkg/node/kubeletplugin/podresources", Test: "TestUsage_OpenDeviceNodes_NameTheProcess",
	},
	{
		Name: "an informational capacity has no request policy", File: "pkg/node/resourceslices/catalogue.go",
		Old: "	case c.policy == nil || monitor:\n		return &", New: "	case c.policy == nil && s.offer.MaxShares < 0:\n		return &",
		Package: built, Test: "TestBuild_MemoryRequested_AllocatesShares",
	},
	{
		Name: "slices show the settings and not the shares of a device", File: "pkg/node/resourceslices/device.go",
		Old: "cmp.Or(h.Shared, standing), share", New: "cmp.Or(\"\", standing), share",
		Package: built, Test: "TestBuild_SharesOfOtherStrategy_ArePublishedAsTheyAre",
	},
	{
		Name: "a bad file of settings takes the good ones away", File: "cmd/dra-kubelet-plugin/settings.go",
		Old: "	if err != nil {\n		if s.lastError", New: "	if err != nil {\n		next := *s.current.Load()\n		next.Settings = parsed\n		s.current.Store(&next)\n		if s.lastError",
		Package: "./cmd/dra-kubelet-plugin", Test: "TestSharingSettings_FileChanges_AreFollowed",
	},
	{
		Name: "a group takes nothing of its GPUs", File: "pkg/node/resourceslices/group.go",
		Old:     "d.ConsumesCounters = counters.consumedByGroup(g, wholes)",
		New:     "_ = counters",
		Package: built, Test: "TestBuild_GroupsWholesAndPartitions_ExcludeEachOther",
	},
	{
		Name: "a pair takes nothing of its GPUs", File: "pkg/node/resourceslices/counters.go",
		Old:     "out = append(out, wholes[i].ConsumesCounters...)",
		New:     "_, out = wholes[i], nil",
		Package: built, Test: "TestBuild_PairsHeldTwice_OthersStayFree",
	},
	{
		Name: "a partition takes nothing of what groups draw on", File: "pkg/node/resourceslices/counters.go",
		Old:     "	if c.size[address] == 0 {\n		return nil",
		New:     "	if c.size[address] == 0 || e.device.Kind == gpu.KindMIG {\n		return nil",
		Package: built, Test: "TestBuild_GroupsWholesAndPartitions_ExcludeEachOther",
	},
	{
		Name: "a held group whose link failed is withdrawn", File: "pkg/node/resourceslices/group.go",
		Old:     "for _, name := range sortedKeys(held) {",
		New:     "for _, name := range sortedKeys(map[string][]gpuState{}) {",
		Package: built, Test: "TestBuild_GroupHeld_KeepsItsGPUs",
	},
	{
		Name: "settings withdraw a held partition", File: "pkg/node/resourceslices/entries.go",
		Old:     "return e.held || (e.placements != sharing.NoPlacement || e.external) && b.available(e)",
		New:     "return (e.placements != sharing.NoPlacement || e.external) && (e.held || b.available(e))",
		Package: built, Test: "TestBuild_SettingsChangeUnderClaims_NeverOverlap",
	},
	{
		Name: "settings end shares that claims hold", File: "pkg/node/resourceslices/device.go",
		Old:     "		if share && o.MaxShares > 0 {\n",
		New:     "		if share && o.MaxShares < 0 {\n",
		Package: built, Test: "TestBuild_SettingsChangeUnderClaims_NeverOverlap",
	},
	{
		Name: "groups are published without counters", File: "pkg/node/resourceslices/group.go",
		Old:     "case isHeld || !b.o.Counters ||",
		New:     "case isHeld ||",
		Package: built, Test: "TestBuild_LinksAndHeldGroups_PublishesExpectedGroups",
	},
	{
		Name: "the device of an ending claim is refused at once", File: "pkg/node/kubeletplugin/service.go",
		Old: "errors.As(err, &held) && s.ending(ctx, held.Claim) {", New: "errors.As(err, &held) && false {",
		Package: "./pkg/node/kubeletplugin", Test: "TestPlugin_DeviceOfEndingClaim_IsWaitedFor",
	},
	{
		Name: "a node with slices withdraws devices as if it were new", File: "pkg/node/demand/demand.go",
		Old: "return err == nil && len(list.Items) == 0", New: "return err == nil && len(list.Items) >= 0",
		Package: "./pkg/node/demand", Test: "TestDemand_ConfigMapComesAndChanges_ProfilesFollow",
	},
	{
		Name: "without a ConfigMap no profile counts as wanted", File: "pkg/node/demand/demand.go",
		Old: "case a.asked == nil && !now.Before(a.freshEnd), a.alone:", New: "case a.alone:",
		Package: "./pkg/node/demand", Test: "TestDemand_ConfigMapComesAndChanges_ProfilesFollow",
	},
	{
		Name: "without a controller a node waits for ever", File: "pkg/node/demand/demand.go",
		Old: "a.alone = time.Since(a.seen) >= aloneAfter", New: "a.alone = false",
		Package: "./pkg/node/demand", Test: "TestDemand_NoController_AllPublishedUntilItWritesAgain",
	},
	{
		Name: "an API server that does not answer counts as no controller", File: "pkg/node/demand/demand.go",
		Old: "if err != nil && !apierrors.IsNotFound(err) {\n\t\treturn\n\t}\n\tif err == nil", New: "if err == nil",
		Package: "./pkg/node/demand", Test: "TestDemand_NoController_AllPublishedUntilItWritesAgain",
	},
	{
		Name: "groups that end are given to new claims", File: "pkg/node/resourceslices/group.go",
		Old: "b.groupsOf(m) == sharing.EndingPlacements })", New: "false })",
		Package: built, Test: "TestBuild_GroupsEnd_TaintedUntilTheyAreGone",
	},
	{
		Name: "a held placement is the one of a profile that no object asks for", File: "pkg/node/resourceslices/entries.go",
		Old: "e.placements == sharing.AllPlacements || e.held || e.external ||", New: "e.placements == sharing.AllPlacements || e.external ||",
		Package: built, Test: "TestBuild_ProfileNoObjectAsksFor_OnePlacementOfTheNode",
	},
	{
		Name: "GPUs without partitions have counters although the node has none", File: "pkg/node/resourceslices/gpustate.go",
		Old: "return g.partitionable && g.beside ||", New: "return g.partitionable ||",
		Package: built, Test: "TestBuild_AnotherNodeHasTheOnePlacement_PlainGPUs",
	},
	{
		Name: "a node withdraws its sample at once", File: "pkg/node/demand/demand.go",
		Old: "return sharing.EndingOnePlacement", New: "return out",
		Package: "./pkg/node/demand", Test: "TestDemand_SampleNodesChange_OnlyTheyPublishTheOne",
	},
	{
		Name: "a GPU withdraws its partitions at once when others serve", File: "pkg/node/demand/demand.go",
		Old: "ending = ending || now.Before(a.ends[offer])", New: "ending = false && now.Before(a.ends[offer])",
		Package: "./pkg/node/demand", Test: "TestDemand_GPUsAreNamed_OnlyTheyHavePartitionsAndShares",
	},
	{
		Name: "all GPUs of a serving node have partitions", File: "pkg/wire/demand/demand.go",
		Old: "if everywhere || !listed || what == Groups {", New: "if true || everywhere || !listed || what == Groups {",
		Package: "./pkg/node/demand", Test: "TestDemand_GPUsAreNamed_OnlyTheyHavePartitionsAndShares",
	},
	{
		Name: "a GPU with shares of claims stops serving", File: "pkg/cluster/demand/objects/holdings.go",
		Old: "part[d.PCIAddress] || h.shared[d] > 0", New: "part[d.PCIAddress]",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_ServingNode_TheLastFreeGPUsServe",
	},
	{
		Name: "free GPUs stop serving at once", File: "pkg/wire/demand/gpus.go",
		Old: "(n < free || !shrink &&", New: "(n < free || false &&",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_ServingNode_TheLastFreeGPUsServe",
	},
	{
		Name: "no GPU serves while the slice of GPUs is written", File: "pkg/cluster/demand/serving.go",
		Old: "case known && (whole[name] || !listed):", New: "case known:",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_ServingNode_TheLastFreeGPUsServe",
	},
	{
		Name: "a claim with admin access uses a GPU", File: "pkg/cluster/demand/objects/holdings.go",
		Old: "|| ptr.Deref(r.AdminAccess, false) {", New: "|| false && ptr.Deref(r.AdminAccess, false) {",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_ServingNode_TheLastFreeGPUsServe",
	},
	{
		Name: "the MIG mode that claims need makes a GPU serve", File: "pkg/node/resourceslices/entries.go",
		Old: "g.MIG.Enabled && !b.o.Switched[g.PCIAddress]", New: "g.MIG.Enabled",
		Package: built, Test: "TestBuild_MIGMode_SettingsSeeTheAdministrators",
	},
	{
		Name: "no further GPUs serve while a pod waits in vain", File: "pkg/wire/demand/gpus.go",
		Old: "case s.Exhausted && now.Sub(s.exhausted) >= Grow:", New: "case false:",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_ServingNode_TheLastFreeGPUsServe",
	},
	{
		Name: "GPU seconds are charged with what is held now", File: "pkg/node/usage/usage.go",
		Old: "range c.rates {\n		c.sums[s] += elapsed", New: "range c.ratesOf(o) {\n		c.sums[s] += elapsed",
		Package: "./pkg/node/usage", Test: "TestCounters_ClaimStartsAndEnds_ChargedForItsTime",
	},
	{
		Name: "the GPU seconds of a namespace end with its last claim", File: "pkg/node/usage/usage.go",
		Old: "|| c.at.Sub(last[name]) >= keepNamespace", New: "|| past > 0",
		Package: "./pkg/node/usage", Test: "TestCounters_ShortClaim_CountsForItsNamespace",
	},
	{
		Name: "parts of a GPU that no claim can get are free", File: "pkg/node/usage/rates.go",
		Old: "available(devices, held, g)", New: "available(devices, nil, g)",
		Package: "./pkg/node/usage", Test: "TestCounters_Devices_ChargeTheirPartOfTheBoard",
	},
	{
		Name: "unreadable records end claims for GPU seconds", File: "pkg/node/usage/meter.go",
		Old: "if err == nil && !incomplete {", New: "if _ = incomplete; err == nil {",
		Package: "./pkg/node/usage", Test: "TestMeter_UnknownClaims_LastKnownOnesCount",
	},
	{
		Name: "a process that avoids the daemon takes an idle GPU", File: "internal/mpsd/supervisor/daemon.go",
		Old: "			if err == nil && many {\n", New: "			if err == nil && false {\n",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_NoClientYet_ServerHoldsTheDevice",
	},
	{
		Name: "a server that a tenant ended stays away", File: "internal/mpsd/supervisor/daemon.go",
		Old: "			if many {\n				d.hold(l)\n", New: "			if false {\n				d.hold(l)\n",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_NoClientYet_ServerHoldsTheDevice",
	},
	{
		Name: "nodes publish monitor devices for which no object asks", File: "pkg/node/resourceslices/device.go",
		Old: "(asked == sharing.NoPlacement || asked == sharing.OnePlacement)", New: "asked == sharing.NoPlacement",
		Package: "./pkg/node/resourceslices", Test: "TestBuild_ConditionsAndHeldDevices_PublishesExpectedDevices",
	},
	{
		Name: "a claim of monitor devices asks for none", File: "pkg/cluster/demand/objects/objects.go",
		Old: "what == demand.Monitors && !a.Admin || ", New: "what == demand.Monitors || ",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_ClaimAsksForMonitors_NodesLearnIt",
	},
	{
		Name: "SELinux keeps tenants from their MPS daemon's socket", File: "internal/mpsd/supervisor/daemon.go",
		Old: "{daemonDir, pipeDir, shmDir} {\n		if err := host", New: "{shmDir} {\n		if err := host",
		Package: "./internal/mpsd/supervisor", Test: "TestEnsure_KernelHasSELinux_ContainersReachTheDaemon",
	},
	{
		Name: "SELinux keeps containers from files of an earlier release", File: "internal/host/selinux.go",
		Old: "		if err == nil {\n			err = shareFile(path)", New: "		if err == nil && path == dir {\n			err = shareFile(path)",
		Package: "./cmd/dra-kubelet-plugin", Test: "TestShareFiles_KernelHasSELinux_ContainersReadFilesOfEarlierReleases",
	},
	{
		Name: "the slices of a deleted Node are written again", File: "pkg/node/kubeletplugin/publishing/publisher.go",
		Old: "if deleted || s.node", New: "if s.node",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestPublisher_NodeDeleted_PublishesNothingUntilItIsBack",
	},
	{
		Name: "free GPUs of two halves of a board are taken for a group", File: "pkg/cluster/why/cause.go",
		Old: "published.Without(gone), claims", New: "published.Without(taken).Without(gone), claims",
		Package: "./pkg/cluster/why", Test: "TestAsk_Situation_SaysReasonAndCure",
	},
	{
		Name: "XIDs that an event set has are lost with it", File: "pkg/node/health/watcher/watcher.go",
		Old: "limit, pass = 0, waitLimit/10", New: "return nil",
		Package: "./pkg/node/health/watcher", Test: "TestRun_SetEnds_ItsXIDsArrive",
	},
	{
		Name: "a partition that is prepared soon after another is not checked", File: "pkg/node/kubeletplugin/publishing/partitions.go",
		Old: "if n.due = wait > 0; n.due {", New: "if n.due = false; wait < 0 {",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestNode_PartitionsPreparedInARow_EachIsCheckedAfterItsGrace",
	},
	{
		Name: "a check of a lost partition that fails is not repeated", File: "pkg/node/kubeletplugin/reporting/events.go",
		Old: "			known = false\n", New: "",
		Package: "./pkg/node/kubeletplugin/reporting", Test: "TestLostPartitions_OneGPUHangs_ReportsOthers",
	},
	{
		Name: "an XID makes a lost partition prepared again", File: "pkg/node/kubeletplugin/reporting/claimstatus.go",
		Old: "gone[s.Device] = *c", New: "_ = gone[s.Device]",
		Package: "./pkg/node/kubeletplugin/reporting", Test: "TestClaimStatus_PartitionLost_StaysUntilPrepare",
	},
	{
		Name: "the inventory gets /sys as /proc", File: "cmd/dra-kubelet-plugin/main.go",
		Old: "ProcRoot:      d.ProcRoot,\n\t\tSysRoot:       d.SysRoot,", New: "ProcRoot: d.SysRoot,\n\t\tSysRoot: d.ProcRoot,",
		Package: "./cmd/dra-kubelet-plugin", Test: "TestRun_EachPart_HasItsEffect",
	},
	{
		Name: "the watcher of XIDs gets /sys as /proc", File: "cmd/dra-kubelet-plugin/main.go",
		Old: "ProcRoot: d.ProcRoot,\n\t\t\tSysRoot:  d.SysRoot,", New: "ProcRoot: d.SysRoot,\n\t\t\tSysRoot:  d.ProcRoot,",
		Package: "./cmd/dra-kubelet-plugin", Test: "TestRun_EachPart_HasItsEffect",
	},
	{
		Name: "no watcher of MPS daemons runs", File: "cmd/dra-kubelet-plugin/main.go",
		Old: "		out = append(out, mps.NewWatcher(", New: "		_ = append(out, mps.NewWatcher(",
		Package: "./cmd/dra-kubelet-plugin", Test: "TestRun_EachPart_HasItsEffect",
	},
	{
		Name: "no event of the kernel arrives", File: "cmd/dra-kubelet-plugin/main.go",
		Old: "kubeletplugin.Runner{d.rebound, ", New: "kubeletplugin.Runner{",
		Package: "./cmd/dra-kubelet-plugin", Test: "TestBackground_PartsThatRun_AreStarted",
	},
	{
		Name: "nothing looks for the holders of GPUs", File: "cmd/dra-kubelet-plugin/main.go",
		Old: "d.measurements.meter, d.measurements.holders, ", New: "d.measurements.meter, ",
		Package: "./cmd/dra-kubelet-plugin", Test: "TestBackground_PartsThatRun_AreStarted",
	},
	{
		Name: "the daemons outlive their supervisor", File: "cmd/mps-supervisor/main.go",
		Old: "		defer s.Close()\n", New: "",
		Package: "./cmd/mps-supervisor", Test: "TestRun_EachOption_HasItsEffect",
	},
}
