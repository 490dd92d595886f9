// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// claimMutations change work on claims: the engine, its records, files and locks.
var claimMutations = []Mutation{
	{
		Name: "a list of plans outlives a change in the same tick of the clock", File: "pkg/devicestate/view.go",
		Old: "recorded && stamp.Settled(now)", New: "recorded",
		Package: state, Test: "TestView_NewChange_ReadsAgain",
	},
	{
		Name: "a list of plans outlives a change of a record", File: "pkg/devicestate/view.go",
		Old: "v.kept && stamp == v.stamp", New: "v.kept",
		Package: state, Test: "TestView_AnyChange_ListFollows",
	},
	{
		Name: "a record that was replaced looks as before", File: "pkg/devicestate/view.go",
		Old: "err == nil && stamp == seen.stamp", New: "err == nil && seen.State != \"\"",
		Package: state, Test: "TestView_AnyChange_ListFollows",
	},
	{
		Name: "a list without an unreadable record is kept", File: "pkg/devicestate/view.go",
		Old: "err == nil && recorded && ", New: "err == nil && ",
		Package: state, Test: "TestView_AnyChange_ListFollows",
	},
	{
		Name: "a list of plans is never read again", File: "pkg/devicestate/view.go",
		Old: "fresh := now.Sub(v.filled) < readAgain", New: "fresh := !v.filled.IsZero() || now.Sub(v.filled) < readAgain",
		Package: state, Test: "TestView_RecordDamagedInPlace_SeenWithinTenMinutes",
	},
	{
		Name: "an outdated spec waits for the check of its claim", File: "pkg/devicestate/recover.go",
		Old: "unconfirmed, err := e.confirm(ctx)", New: "unconfirmed, err := []Finding(nil), error(nil)",
		Package: state, Test: "TestRecover_GPUHangs_SpecsStillFollowNumbers",
	},
	{
		Name: "a spec is written before all outdated ones are removed", File: "pkg/devicestate/recover.go",
		Old: "unconfirmed, err := e.confirm(ctx)", New: "unconfirmed, err := []Finding(nil), error(nil)",
		Package: state, Test: "TestRecover_TwoGPUsChangeNumbers_RemovesBeforeItWrites",
	},
	{
		Name: "a spec outlives its partition, whose number another one has", File: "pkg/devicestate/recover.go",
		Old: "if err := e.withdrawUnchecked(r.Plan.Claim, e.checkSteps(ctx, r.Plan, locks)); err != nil {", New: "if err := e.checkSteps(ctx, r.Plan, locks); err != nil {",
		Package: state, Test: "TestRecover_NumberOfLostPartitionReused_RemovesSpec",
	},
	{
		Name: "a check after a scan leaves the spec of a lost partition", File: "pkg/devicestate/recover.go",
		Old: "	return e.withdrawUnchecked(r.Plan.Claim, e.checkSteps(ctx, r.Plan, locks))\n", New: "	return e.checkSteps(ctx, r.Plan, locks)\n",
		Package: state, Test: "TestVerify_PartitionLost_RemovesSpec",
	},
	{
		Name: "a new spec joins an outdated one with its number", File: "pkg/devicestate/confirm.go",
		Old: "		kernel := e.confirmAfterChange(ctx)\n", New: "		kernel := e.o.Kernel()\n",
		Package: state, Test: "TestPrepare_NumberOfAnotherClaim_RemovesItsSpecFirst",
	},
	{
		Name: "a new partition has the number of a spec of another claim", File: "pkg/devicestate/prepare.go",
		Old: "		err = e.withdrawReplaced(p, others)\n", New: "		err = nil\n",
		Package: state, Test: "TestPrepare_NumberOfLostPartition_RemovesItsSpecFirst",
	},
	{
		Name: "numbers that change while a spec is written go unnoticed", File: "pkg/devicestate/confirm.go",
		Old: "		if e.o.Kernel() == kernel {\n", New: "		if e.o.Kernel() == kernel || true {\n",
		Package: state, Test: "TestPrepare_NumbersChangeMeanwhile_WritesTheNewOnes",
	},
	{
		Name: "NVML without an answer removes specs", File: "pkg/devicestate/confirm.go",
		Old: "	case errors.As(err, &code), errors", New: "	case errors.As(err, &code) && false, errors",
		Package: state, Test: "TestRecover_NVMLFails_KeepsConfirmedSpecs",
	},
	{
		Name: "a spec is removed without a report", File: "pkg/devicestate/confirm.go",
		Old: "	e.o.Reports.Report(report)\n", New: "",
		Package: state, Test: "TestRecover_KernelChanges_NoSpecNamesAnotherDevice",
	},
	{
		Name: "a driver root that lacks files removes specs", File: "pkg/devicestate/confirm.go",
		Old: "	return cdi.CompareNodes(data, now, incomplete == nil)\n", New: "	return errors.Join(incomplete, cdi.CompareNodes(data, now, incomplete == nil))\n",
		Package: state, Test: "TestPrepare_DriverRootIncomplete_ReturnsErrorAndLeavesNothing",
	},
	{
		Name: "a durable file is not flushed", File: "internal/host/file.go",
		Old: "return h.do(label, CallSync, path, f.Sync)", New: "return nil",
		Package: state, Test: "TestEngine_PowerCutAfterEveryOperation_KeepsCommits",
	},
	{
		Name: "a new name is not flushed", File: "internal/host/file.go",
		Old:     "		return err\n	}\n	return h.SyncDir(label, filepath.Dir(path))",
		New:     "		return err\n	}\n	return nil",
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
		Old: "	if err == nil {\n		err = e.commit(p, boot)\n	}\n", New: "",
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
		Name: "missing notes mean no claim", File: "pkg/devicestate/overlap.go",
		Old: "	if len(lines) < 2 {\n		return nil, false\n	}\n", New: "	if len(lines) < 2 {\n		return nil, true\n	}\n",
		Package: state, Test: "TestPrepare_NotesLostInPowerCut_FindsHolders",
	},
	{
		Name: "an unknown record blocks nothing", File: "pkg/devicestate/overlap.go",
		Old: "	if len(addresses) > 0 && !prepared {", New: "	if len(addresses) > 0 && !prepared && false {",
		Package: state, Test: "TestRecover_UnreadableRecord_RebuildsOrBlocks",
	},
	{
		Name: "an unreadable record counts as none", File: "pkg/devicestate/prepare.go",
		Old: "		return e.rebuild(uid, boot, err)\n", New: "		return record.Record{}, nil\n",
		Package: state, Test: "TestRecover_UnreadableRecord_RebuildsOrBlocks",
	},
	{
		Name: "the spec outlives its claim", File: "pkg/devicestate/unprepare.go",
		Old: "	if err := e.o.Specs.Remove(p.Claim.UID); err != nil {\n		return err\n	}\n", New: "",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "the record goes before the effects", File: "pkg/devicestate/unprepare.go",
		Old:     "	if err := e.undoRecord(ctx, r, boot, locks); err != nil {\n		if errors.Is(err, plan.ErrKept) {\n			e.keep(r.Plan.Claim, err)\n		}\n		return err\n	}\n	if err := e.records.Remove(r.Plan.Claim.UID); err != nil {\n		return err\n	}\n",
		New:     "	if err := e.records.Remove(r.Plan.Claim.UID); err != nil {\n		return err\n	}\n	if err := e.undoRecord(ctx, r, boot, locks); err != nil {\n		if errors.Is(err, plan.ErrKept) {\n			e.keep(r.Plan.Claim, err)\n		}\n		return err\n	}\n",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a release is not recorded before it begins", File: "pkg/devicestate/unprepare.go",
		Old: "if phaseOf(r, boot).prepared() && len(r.Plan.Steps) > 0 {", New: "if phaseOf(r, boot) == unknown {",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a claim waits for its GPU that hangs", File: "pkg/devicestate/claimwork.go",
		Old: "	defer context.AfterFunc(ctx, func() { time.AfterFunc(e.o.Grace, cancel) })()\n", New: "",
		Package: partitions, Test: "TestOneGPUOfEightHangs_OthersServed",
	},
	{
		Name: "a GPU that hangs loses its lock", File: "pkg/devicestate/claimwork.go",
		Old: "		defer locks[w.address].done()\n		return work(w.plan, w.address)\n", New: "		locks[w.address].done()\n		return work(w.plan, w.address)\n",
		Package: partitions, Test: "TestOneGPUOfEightHangs_OthersServed",
	},
	{
		Name: "a claim that waits for a GPU keeps the locks of its others", File: "pkg/devicestate/engine.go",
		Old: "		if len(held) > 0 {\n", New: "		if len(held) < 0 {\n",
		Package: partitions, Test: "TestOneGPUOfEightLocked_OthersServed",
	},
	{
		Name: "a new claim gets a GPU that hangs", File: "pkg/devicestate/overlap.go",
		Old: "		if g.Silent {\n", New: "		if g.Silent && g.Minor < 0 {\n",
		Package: state, Test: "TestPrepare_GPUHangs_RefusedUnlessPrepared",
	},
	{
		Name: "a second attempt joins one that hangs", File: "internal/host/attempts.go",
		Old: "; !runs {\n", New: "; !runs || runs {\n",
		Package: "./internal/host", Test: "TestEach_OneHangs_OthersHaveResults",
	},
	{
		Name: "a hanging GPU stops the check for lost partitions", File: "pkg/devicestate/recover.go",
		Old: "e.eachClaim(ctx, &e.verifying, e.o.WorkLimit, findings", New: "e.eachClaim(ctx, &e.verifying, 1<<40, findings",
		Package: "./pkg/node/kubeletplugin/reporting", Test: "TestLostPartitions_OneGPUHangs_ReportsOthers",
	},
	{
		Name: "a second damaged record of a claim finds its name taken", File: "pkg/claim/record/store.go",
		Old: " || errors.Is(err, fs.ErrExist); n++ {", New: "; n++ {",
		Package: "./pkg/claim/record", Test: "TestSetAside_UnreadableRecord_StaysUntilReplaced",
	},
	{
		Name: "periods depend on the wall clock", File: "internal/host/host.go",
		Old: "o.Now = time.Now", New: "o.Now = func() time.Time { return time.Now().Round(0) }",
		Package: "./internal/host", Test: "TestNow_Machine_IsMonotonic",
	},
	{
		Name: "an intent is left as it is", File: "pkg/devicestate/recover.go",
		Old: "	case intent:", New: "	case absent:",
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
		Old: "	defer locks.release()\n	switch now {\n", New: "	locks.release()\n	switch now {\n",
		Package: state, Test: "TestUndo_GPULocks_HeldToTheEnd",
	},
	{
		Name: "a spec without a record stays", File: "pkg/devicestate/recover.go",
		Old: "	return \"removed\", e.removeOrphan(f.Claim.UID)\n", New: "	return \"removed\", nil\n",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "the boot ID is ignored", File: "pkg/devicestate/phase.go",
		Old: "r.State == record.Committed && r.BootID != boot:", New: "r.State == record.Committed && r.BootID == \"\":",
		Package: state, Test: "TestEngine_PowerCutAfterEveryOperation_KeepsCommits",
	},
	{
		Name: "another allocation counts as prepared", File: "pkg/devicestate/prepare.go",
		Old: "	found := now.prepared() && old.Plan.SameAllocation(p)\n", New: "	found := now.prepared()\n",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a caller who left is not noticed", File: "pkg/devicestate/prepare.go",
		Old: "		err = context.Cause(ctx)\n", New: "		err = nil\n",
		Package: state, Test: "TestPrepare_CallerLeavesMeanwhile_LeavesNothing",
	},
	{
		Name: "a claim is released on an API error", File: "pkg/devicestate/deletedclaims.go",
		Old: "return err == nil && !d.onThisNode(claim), err", New: "return err != nil || !d.onThisNode(claim), err",
		Package: state, Test: "TestRelease_APIServerDown_Keeps",
	},
	{
		Name: "there is no grace period", File: "pkg/devicestate/deletedclaims.go",
		Old: "if !ended[uid] && d.engine.o.Host.Now().Sub(first) < d.grace {", New: "if d.grace < 0 {",
		Package: state, Test: "TestRelease_ClaimGoneForGrace_Releases",
	},
	{
		Name: "a deleted claim of an earlier boot waits for the grace period", File: "pkg/devicestate/deletedclaims.go",
		Old: "return boot != \"\" && r.BootID != \"\" && r.BootID != boot", New: "return false",
		Package: state, Test: "TestRelease_RecordOfEarlierBoot_WaitsForAPIServerOnly",
	},
	{
		Name: "a claim that was prepared meanwhile is released without a grace period", File: "pkg/devicestate/deletedclaims.go",
		Old: "if early && !ended {", New: "if early && !ended && boot == \"\" {",
		Package: state, Test: "TestRelease_PreparedInThisBoot_KeepsForGrace",
	},
	{
		Name: "a claim is released under a process", File: "pkg/devicestate/deletedclaims.go",
		Old: "	if holder != \"\" {\n", New: "	if false {\n",
		Package: state, Test: "TestRelease_ClaimInUse_KeepsAndReports",
	},
	{
		Name: "the checksum is not looked at", File: "pkg/claim/record/record.go",
		Old: "if hex.EncodeToString(sum[:]) != head.SHA256 {", New: "if len(sum) == 0 {",
		Package: "./pkg/claim/record", Test: "TestDecode_DamagedFile_ReturnsErrUnreadable",
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
		Name: "a spec that returns is not read again", File: "pkg/devicestate/prepare.go",
		Old: "	case phaseOf(r, boot) == unknown:\n", New: "	case phaseOf(r, boot) == unknown && uid == \"\":\n",
		Package: partitions, Test: "TestUnprepare_RecordDamagedAndSpecMissingOnce_DestroysPartition",
	},
	{
		Name: "a spec is repaired without a check of its partitions", File: "pkg/devicestate/recover.go",
		Old: "	if err := e.withdrawUnchecked(r.Plan.Claim, e.checkSteps(ctx, r.Plan, locks)); err != nil {\n		return \"\", err\n	}\n", New: "",
		Package: partitions, Test: "TestRecover_PartitionVanished_ReportsAndWritesNoSpec",
	},
	{
		Name: "a partition that vanished is made before the record says so", File: "pkg/devicestate/prepare.go",
		Old: "if err = e.commit(p, boot); err == nil {\n			_, err", New: "if standing {\n			_, err",
		Package: partitions, Test: "TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "shares that are more than their GPU are handed out", File: "pkg/devicestate/overlap.go",
		Old: `held := totals.add(r.Plan); held != nil && !prepared {`, New: `held := totals.add(r.Plan); held != nil && held.device == "" {`,
		Package: partitions, Test: "TestPrepare_SharesExceedGPU_Refused",
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
		Name: "the API server is asked about each record", File: "pkg/devicestate/deletedclaims.go",
		Old: "if !ended[uid] && referenced(c) {", New: "if !ended[uid] && referenced(plan.Claim{}) {",
		Package: state, Test: "TestRelease_KubeletKnowsClaims_DoesNotAskAPIServer",
	},
	{
		Name: "a server's cache decides that a claim is deleted", File: "pkg/devicestate/deletedclaims.go",
		Old: "d.gone(ctx, f.Claim, d.claims.Get)", New: "d.gone(ctx, f.Claim, d.claims.GetCached)",
		Package: state, Test: "TestRelease_CacheLags_Keeps",
	},
	{
		Name: "a claim can be prepared while it is found deleted", File: "pkg/devicestate/deletedclaims.go",
		Old: "d.engine.lockClaim(ctx, f.Claim.UID)", New: "d.engine.lockClaim(ctx, \"\")",
		Package: state, Test: "TestRelease_ClaimPreparedAgainMeanwhile_StaysPrepared",
	},
	{
		Name: "a share ignores the strategy of those beside it", File: "pkg/devicestate/overlap.go",
		Old: "node.Standing[held.device] = *held.sharing", New: "node.Standing[held.device] = plan.Sharing{}",
		Package: "./pkg/partition/mig", Test: "TestPrepare_SharingPolicyChanged_JoinsShares",
	},
	{
		Name: "a prepared claim is planned anew", File: "pkg/devicestate/prepare.go",
		Old: "			p = old.Plan.Refreshed(p)\n", New: "			p.Steps = old.Plan.Steps\n",
		Package: state, Test: "TestPrepare_PreparedClaimPlannedOtherwise_KeepsOrRefreshesEachField",
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
		Name: "a partition that an unreadable claim may share is destroyed", File: "pkg/partition/mig/executor.go",
		Old: "	case w.MayBeShared():\n", New: "	case false:\n",
		Package: "./pkg/partition/mig", Test: "TestCoTenantUnreadable_AnyOperation_KeepsItsEffects",
	},
	{
		Name: "an MPS daemon that an unreadable claim may share is stopped", File: "pkg/claim/executor/mps/executor.go",
		Old: "	if w.MayBeShared() {\n		return nil", New: "	if false {\n		return nil",
		Package: "./pkg/partition/mig", Test: "TestCoTenantUnreadable_AnyOperation_KeepsItsEffects",
	},
	{
		Name: "an unreadable claim loses the limits of its MPS daemon", File: "pkg/claim/executor/mps/executor.go",
		Old: "		if w.MayBeShared() {\n			want", New: "		if false {\n			want",
		Package: "./pkg/partition/mig", Test: "TestCoTenantUnreadable_AnyOperation_KeepsItsEffects",
	},
	{
		Name: "the spec of an unreadable record is not read", File: "pkg/devicestate/overlap.go",
		Old: "	case err != nil:\n		r, err = e.ofSpec(uid, boot)\n", New: "	case err != nil:\n",
		Package: "./pkg/partition/mig", Test: "TestUnprepare_CoTenantRecordUnreadable_UsesSpec",
	},
	{
		Name: "a partition that may be an unreadable claim's counts as external", File: "pkg/partition/mig/executor.go",
		Old: "case len(obstacles) > 0 && len(w.Unknown) > 0:", New: "case len(obstacles) > 0 && len(w.Unknown) > 99:",
		Package: "./pkg/partition/mig", Test: "TestPrepare_RebootAndCoTenantUnknown_DoesNotTakeItsPartition",
	},
	{
		Name: "a kept partition stays for ever", File: "pkg/devicestate/unprepare.go",
		Old: "	if len(findings) == 0 {\n		return", New: "	if len(findings) >= 0 {\n		return",
		Package: "./pkg/partition/mig", Test: "TestUnprepare_CoTenantUnknownOnOneGPU_KeepsOnlyItsPartition",
	},
	{
		Name: "a kept partition keeps those of other GPUs", File: "pkg/devicestate/unprepare.go",
		Old: "others[address].unknown)\n				continue\n", New: "others[address].unknown)\n				return kept[i]\n",
		Package: "./pkg/partition/mig", Test: "TestUnprepare_CoTenantUnknownOnOneGPU_KeepsOnlyItsPartition",
	},
	{
		Name: "a claim that is looked up does not get the kept partition", File: "pkg/devicestate/prepare.go",
		Old: "if t.Committed || there && slices", New: "if t.Committed || !there && slices",
		Package: "./pkg/partition/mig", Test: "TestCoTenantUnreadable_AnyOperation_KeepsItsEffects",
	},
	{
		Name: "a damaged note is believed", File: "pkg/devicestate/overlap.go",
		Old: "return uids, slices.Equal(lines, noteLines(boot, uids))", New: "return uids, lines[0] == boot",
		Package: state, Test: "TestPrepare_NotesDamaged_FindsHolders",
	},
	{
		Name: "unreadable notes hold up a claim", File: "pkg/devicestate/overlap.go",
		Old: "uids, ok := notedUIDs(was, boot); ok && err == nil {\n		return was, uids, nil\n	}\n", New: "uids, ok := notedUIDs(was, boot); ok || err != nil {\n		return was, uids, err\n	}\n",
		Package: state, Test: "TestPrepare_NotesDamaged_FindsHolders",
	},
	{
		Name: "a record that is gone frees its devices", File: "pkg/devicestate/overlap.go",
		Old: "		r, err = e.lostRecord(uid, boot)\n", New: "		return record.Record{}\n",
		Package: state, Test: "TestRecord_Gone_SpecReplacesIt",
	},
	{
		Name: "Recover removes the spec of a record that is gone", File: "pkg/devicestate/recover.go",
		Old: "	if phaseOf(lost, boot) != absent {\n", New: "	if false {\n",
		Package: state, Test: "TestRecord_Gone_SpecReplacesIt",
	},
	{
		Name: "a record that is readable again stays unknown", File: "pkg/devicestate/recover.go",
		Old: "e.records.Aside(lost); err == nil {", New: "e.records.Aside(lost); err == nil && phaseOf(r, boot) == unknown {",
		Package: state, Test: "TestRecord_ReadableAgain_ReplacesUnknown",
	},
	{
		Name: "an unreadable record hides missing specs", File: "pkg/devicestate/overlap.go",
		Old: "		case errors.Is(err, record.ErrUnreadable):\n			return true, nil", New: "		case false:\n			return true, nil",
		Package: state, Test: "TestMissingSpecs_OtherRecordUnreadable_ReportsThem",
	},
	{
		Name: "one bad read is a bad sector", File: "internal/host/file.go",
		Old: "	if errors.Is(err, unix.EIO) {\n		return read()", New: "	if false {\n		return read()",
		Package: "./internal/host", Test: "TestRead_OneReadFails_ReadsAgain",
	},
	{
		Name: "a damaged plan of a spec is believed", File: "pkg/cdi/spec.go",
		Old: "ok && sum != checksum(text, boot) {", New: "ok && sum == \"\" {",
		Package: "./pkg/cdi", Test: "TestPlanOf_DamagedPlan_ReturnsError",
	},
	{
		Name: "an unreadable record of a setting counts as none", File: "pkg/claim/record/gpu.go",
		Old: "		return fresh, true, nil\n", New: "		return fresh, false, nil\n",
		Package: "./pkg/claim/record", Test: "TestGPUs_Unreadable_KnownWithDefault",
	},
	{
		Name: "a co-tenant's time slice is restored", File: "pkg/claim/executor/timeslice/timeslice.go",
		Old: "if !known && !joins {", New: "if !known {",
		Package: "./pkg/partition/mig", Test: "TestPrepare_RecordOfTimeSliceLost_RestoresDefault",
	},
	{
		Name: "a claim on bad sectors never ends", File: "pkg/devicestate/unprepare.go",
		Old: "	if e.readLater(old, boot, err) {", New: "	if e.readLater(old, boot, err) && phaseOf(old, boot) == unknown {",
		Package: "./pkg/partition/mig", Test: "TestUnprepare_RecordAndSpecOnBadSectors_PartitionKeepsAnOwner",
	},
	{
		Name: "a record that is unreadable for a moment frees its partition", File: "pkg/devicestate/unprepare.go",
		Old: "	return err == nil || errors.Is(err, syscall.EIO)\n", New: "	return errors.Is(err, syscall.ENOSPC)\n",
		Package: "./pkg/partition/mig", Test: "TestCoTenantUnreadable_AnyOperation_KeepsItsEffects",
	},
	{
		Name: "a claim whose pod ended on bad sectors keeps its devices", File: "pkg/devicestate/unprepare.go",
		Old: "	if err := e.records.Undo(claim.UID); err != nil {\n		return err\n	}\n	r := unknownRecord", New: "	r := unknownRecord",
		Package: "./pkg/partition/mig", Test: "TestUnprepare_RecordAndSpecOnBadSectors_PartitionKeepsAnOwner",
	},
	{
		Name: "a deleted claim on bad sectors blocks the node for ever", File: "pkg/devicestate/deletedclaims.go",
		Old: "case err == nil && r.State == record.Unknown:", New: "case err == nil && r.State == record.Unknown && boot == \"\":",
		Package: "./pkg/partition/mig", Test: "TestUnprepare_RecordAndSpecOnBadSectors_PartitionKeepsAnOwner",
	},
	{
		Name: "a new share has the remedy of the claim that lost the partition", File: "pkg/devicestate/prepare.go",
		Old: "	if errors.Is(err, plan.ErrDestroyed) {\n		err = lostByOther", New: "	if errors.Is(err, plan.ErrDestroyed) && standing {\n		err = lostByOther",
		Package: "./pkg/partition/mig", Test: "TestPrepare_SharedPartitionDestroyed_NamesTheClaimThatLostIt",
	},
	{
		Name: "a deleted lock file excludes no process", File: "internal/host/lock.go",
		Old: "if !deleted(f) || l.used(path) {", New: "if !deleted(f) || !l.used(path) {",
		Package: "./internal/host", Test: "TestLock_FileDeleted_StillExcludesProcesses",
	},
	{
		Name: "a record that was found unreadable is not rebuilt", File: "pkg/devicestate/overlap.go",
		Old: "now != absent && now != read {", New: "now != absent && now != read && now == replacing {",
		Package: state, Test: "TestMissingSpecs_OtherRecordUnreadable_ReportsThem",
	},
	{
		Name: "equal requests at the same time are evaluated each", File: "pkg/cluster/budget/counter.go",
		Old: "c.evaluations.Do(", New: "new(singleflight.Group).Do(",
		Package: "./pkg/cluster/budget", Test: "TestLargest_EqualRequestsAtOnce_EvaluatedOnce",
	},
	{
		Name: "a GPU of a node with missing slices is free", File: "pkg/show/view/build.go",
		Old: "g.Incomplete, g.Closed = b.node.Incomplete, b.node.Closed", New: "g.Closed = b.node.Closed",
		Package: "./pkg/show/view", Test: "TestNodes_PoolHalfWritten_Incomplete",
	},
}
