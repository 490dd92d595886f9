// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// ownSlices is the policy that bounds the slices of a node.
const ownSlices = chart + "/templates/admissionpolicy.yaml"

// clusterMutations change the controller, its webhook and the chart's policies.
var clusterMutations = []Mutation{
	{
		Name: "a class is removed without the grace", File: "pkg/cluster/controller/classes.go",
		Old: "		if k.unwanted[name].IsZero() {\n			k.unwanted[name] = time.Now().Add(k.grace)\n", New: "		if k.unwanted[name].IsZero() {\n			k.unwanted[name] = time.Now()\n",
		Package: control, Test: "TestReconcileClasses_SliceComesAndGoes_WritesNothing",
	},
	{
		Name: "an administrator's class is changed", File: "pkg/cluster/controller/classes.go",
		Old: "	if !k.options.Ours(is) {\n		return 0, nil\n	}\n", New: "",
		Package: control, Test: "TestReconcileClasses_AdministratorsClass_LeftAlone",
	},
	{
		Name: "an administrator's class is removed", File: "pkg/cluster/controller/classes.go",
		Old: "if k.options.Ours(class) {", New: "if true {",
		Package: control, Test: "TestReconcileClasses_AdministratorsClass_LeftAlone",
	},
	{
		Name: "a claim that names a class by an alternative is not a user of it", File: "pkg/cluster/selector/requests.go",
		Old: "DeviceClassName: s.DeviceClassName,\n", New: "",
		Package: control, Test: "TestReconcileClasses_Unwanted_RemovedAfterGraceUnlessInUse",
	},
	{
		Name: "only the first page of a list is looked at for users of a class", File: "pkg/cluster/read/read.go",
		Old:     "			if o.Continue = page.GetContinue(); o.Continue == \"\" {\n				return\n			}\n",
		New:     "			return\n",
		Package: control, Test: "TestReconcileClasses_Unwanted_RemovedAfterGraceUnlessInUse",
	},
	{
		Name: "a server that drops extended resource names is written to for ever", File: "pkg/cluster/controller/classes.go",
		Old: "k.dropsResourceNames = made.Spec.ExtendedResourceName == nil", New: "k.dropsResourceNames = false",
		Package: control, Test: "TestReconcileClasses_ServerDropsExtendedResourceNames_NotWrittenAgain",
	},
	{
		Name: "a class of another writer that lasts a moment is forgotten", File: "pkg/cluster/controller/classes.go",
		Old:     "			k.made[want.Name] = time.Now()\n			return cacheLag, nil\n",
		New:     "			return 0, nil\n",
		Package: control, Test: "TestController_ServerFails_Converges",
	},
	{
		Name: "a failed write is not tried again", File: "pkg/cluster/controller/controller.go",
		Old: "		l.queue.AddRateLimited(t)\n", New: "",
		Package: control, Test: "TestController_ServerFails_Converges",
	},
	{
		Name: "labels are planned by half a pool", File: "pkg/cluster/controller/labels.go",
		Old: "if !p.Whole {", New: "if false {",
		Package: control, Test: "TestLabel_PoolIncomplete_ChangesNothing",
	},
	{
		Name: "the label of another writer is taken over", File: "pkg/cluster/nodelabels/nodelabels.go",
		Old: "present && (!ours || now != value && now != last)", New: "present && ours && now != value && now != last",
		Package: control, Test: "TestLabel_NodeComesAndGoes_OnlyOwnLabelsChange",
	},
	{
		Name: "an unhealthy device has a shape of its own", File: "pkg/cluster/pool/shape.go",
		Old: "if wire.OfNow(t) {\n				p.out", New: "if false {\n				p.out",
		Package: "./pkg/cluster/pool", Test: "TestShapes_UnhealthyDevice_SameShape",
	},
	{
		Name: "a slice that a watch brings is not trimmed", File: "pkg/cluster/read/read.go",
		Old: "			trimmed := shapes.Trim(slice)\n			return &trimmed, nil\n", New: "			return slice, nil\n",
		Package: control, Test: "TestSliceInformer_BookmarkThenStopped_SyncsAndEnds",
	},
	{
		Name: "watching counts as holding in the cluster metrics", File: "pkg/cluster/controller/clustermetrics.go",
		Old: "if r.AdminAccess == nil || !*r.AdminAccess {", New: "if r.AdminAccess == nil || *r.AdminAccess {",
		Package: control, Test: "TestCluster_ClaimsChange_MetricsFollow",
	},
	{
		Name: "the webhook that only warns denies", File: "pkg/cluster/controller/webhook.go",
		Old: "admission.Options{DenyUnsatisfiable: denyUnsatisfiable}, \"advise\"", New: "admission.Options{Binding: true, DenyUnsatisfiable: denyUnsatisfiable}, \"advise\"",
		Package: control, Test: "TestWebhooks_InvalidClaim_AdmitDeniesAdviseWarns",
	},
	{
		Name: "an unsatisfiable claim is denied without the setting", File: "pkg/cluster/admission/advice.go",
		Old: "case text != \"\" && o.DenyUnsatisfiable:", New: "case text != \"\":",
		Package: "./pkg/cluster/admission", Test: "TestReview_UnsatisfiableObject_Warns",
	},
	{
		Name: "a bug of a review denies what the driver has no part in", File: "pkg/cluster/controller/webhook.go",
		Old: "if binding {\n\t\t\t\t\t\tresult, answer =", New: "{\n\t\t\t\t\t\tresult, answer =",
		Package: control, Test: "TestWebhooks_Panic_OnlyAdmitDenies",
	},
	{
		Name: "a new certificate is served before API servers trust it", File: "pkg/cluster/controller/certificate.go",
		Old: "if rest := trustDelay - time.Since(c.pendingSince); rest > 0 {", New: "if rest := trustDelay - time.Since(c.pendingSince); rest > trustDelay {",
		Package: control, Test: "TestCertificate_SecretChanges_LastWholePairIsServed",
	},
	{
		Name: "a new authority replaces the old one at once", File: "pkg/cluster/controller/certificate.go",
		Old: "for n := 1; n < maxAuthorities; {", New: "for n := maxAuthorities; n < maxAuthorities; {",
		Package: control, Test: "TestCertificate_Damaged_RepairedAndAlwaysTrusted",
	},
	{
		Name: "a certificate is not renewed in time", File: "pkg/cluster/controller/certificate.go",
		Old: "CurrentTime: time.Now().Add(renewBefore)", New: "CurrentTime: time.Now()",
		Package: control, Test: "TestCertificate_NearItsEnd_RenewedWhileRunning",
	},
	{
		Name: "the finalizers of a claim are reviewed", File: "pkg/cluster/admission/review.go",
		Old: "if request.Operation == admissionv1.Update || request.SubResource != \"\" {", New: "if request.SubResource != \"\" {",
		Package: reviews, Test: "TestReview_UpdateOrDelete_IsNotHeldUp",
	},
	{
		Name: "classes are not tried on other drivers' devices", File: "pkg/cluster/admission/class.go",
		Old: "Device: cel.Device{Driver: \"other.example.com\"}", New: "Device: v.minimal(gpu.KindGPU)",
		Package: reviews, Test: "TestReview_InvalidObject_IsDenied",
	},
	{
		Name: "a certain board is searched among one of each shape", File: "pkg/cluster/admission/feasibility.go",
		Old: "case v.identified(q.Expressions()):", New: "case false:",
		Package: reviews, Test: "TestReview_UnsatisfiableObject_Warns",
	},
	{
		Name: "a search has all the time", File: "pkg/cluster/admission/feasibility.go",
		Old: "ask.WithProcessorTime(ctx, max(v.SearchFor, processorTime))", New: "context.WithCancel(ctx)",
		Package: reviews, Test: "TestReview_ManyCombinations_IsCutShort",
	},
	{
		Name: "the time of other programs ends a search", File: "pkg/cluster/ask/limit_linux.go",
		Old: "!= nil {", New: "== nil {",
		Package: "./pkg/cluster/ask", Test: "TestWithProcessorTime_WaitsOrHasNoProcessor_GoesOn",
	},
	{
		Name: "a node whose kubelet starts is missing at once", File: "pkg/cluster/controller/clusterview.go",
		Old: "one.incomplete.left(n.grace, !one.published.Whole)", New: "one.incomplete.left(0, !one.published.Whole)",
		Package: control, Test: "TestNodes_PoolIncompleteOrGone_ShapeStaysForGrace",
	},
	{
		Name: "a profile goes as soon as no object asks for it", File: "pkg/wire/demand/demand.go",
		Old: "now.Sub(since) >= retention+renewInterval ||", New: "now.Sub(since) >= renewInterval ||",
		Package: "./pkg/wire/demand", Test: "TestNext_ProfileNoLongerAskedFor_StaysForAnHour",
	},
	{
		Name: "kubectl gpu top prints 0 for what is not measured", File: "cmd/kubectl-gpu/top.go",
		Old: "		return \"-\"\n	}\n	return fmt.Sprintf(\"%.0f%s\", scale**v, unit)", New: "		return \"0%\"\n	}\n	return fmt.Sprintf(\"%.0f%s\", scale**v, unit)",
		Package: "./cmd/kubectl-gpu", Test: "TestTop_PluginMetrics_DashForUnmeasured",
	},
	{
		Name: "a support archive keeps unknown variables of the environment", File: "pkg/show/bundle/redact.go",
		Old: "ok && !KeepsVariable(name)", New: "ok && secretName.MatchString(name)",
		Package: "./pkg/show/bundle", Test: "TestRedactObject_FormsInAnyPlace_LoseTheSecret",
	},
	{
		Name: "a support archive keeps the parameters of addresses", File: "pkg/show/bundle/redact.go",
		Old: "	if hasQuery {\n", New: "	if hasQuery {\n		out += \"?\" + query\n	} else if hasQuery {\n",
		Package: "./pkg/show/bundle", Test: "TestRedactText_Forms_LoseTheSecret",
	},
	{
		Name: "a table to a file has colours", File: "cmd/kubectl-gpu/output.go",
		Old: "case !o.colours():", New: "case false:",
		Package: "./cmd/kubectl-gpu", Test: "TestOutput_Terminal_IsColoured",
	},
	{
		Name: "--sort-by leaves the rows in order", File: "cmd/kubectl-gpu/output.go",
		Old: "if o.by == \"\" {", New: "if true {",
		Package: "./cmd/kubectl-gpu", Test: "TestSortBy_EachWord_OrdersRows",
	},
	{
		Name: "the token of the page is on the browser's command line", File: "cmd/kubectl-gpu/web.go",
		Old: "err = openBrowser(ctx, file)", New: "err = openBrowser(ctx, url)",
		Package: "./cmd/kubectl-gpu", Test: "TestWeb_Open_CommandLinesLackTheToken",
	},
	{
		Name: "a cordon is reported as done before the plugin follows", File: "cmd/kubectl-gpu/cordon.go",
		Old: "return left == 0 && !node.Incomplete, nil", New: "return true, nil",
		Package: "./cmd/kubectl-gpu", Test: "TestCordon_NoPlugin_SaysThatClaimsGetTheGPU",
	},
	{
		Name: "the webhook's configuration outlives its namespace", File: "pkg/cluster/controller/certificate.go",
		Old: "	if slices.Contains(config.OwnerReferences, owner) {", New: "	if true {",
		Package: "./pkg/cluster/controller", Test: "TestCertificate_Configuration_OwnedByItsNamespace",
	},
	{
		Name: "the webhook does not work without its namespace", File: "pkg/cluster/controller/certificate.go",
		Old: "		if err := c.own(ctx); err != nil { // The webhook works without an owner.\n", New: "		if err := c.own(ctx); err != nil {\n			return checkInterval, err\n",
		Package: "./pkg/cluster/controller", Test: "TestCertificate_Configuration_OwnedByItsNamespace",
	},
	{
		Name: "GPUClusters that were not read count as none", File: "pkg/show/view/doctor_node.go",
		Old: `{d.Failed(read.GPUClusters), "GPUClusters"`, New: `{false, "GPUClusters"`,
		Package: "./cmd/kubectl-gpu", Test: "TestDoctor_GPUOperator_ReadsItsGPUClusters",
	},
	{
		Name: "slices of another driver pass as this one's", File: "pkg/show/view/doctor_otherdriver.go",
		Old: "if s.Shape == nil || s.Possible ||", New: "if true || s.Possible ||",
		Package: "./pkg/show/view", Test: "TestFindings_SlicesOfAnotherDriver_AreNamed",
	},
	{
		Name: "a claim of a PodGroup has no user", File: "pkg/show/view/build.go",
		Old: "			out = append(out, PodGroup+r.Name)\n", New: "",
		Package: "./cmd/kubectl-gpu", Test: "TestClaims_ReservedForPodGroup_PodGroupIsShown",
	},
	{
		Name: "a pending claim of another driver's class is listed", File: "pkg/show/view/class.go",
		Old: "		default:\n			return false\n", New: "		default:\n			ours = true\n",
		Package: "./pkg/show/view", Test: "TestClaims_Pending_ResolvedThroughSelectors",
	},
	{
		Name: "a group without a readable type asks for no groups", File: "pkg/cluster/demand/objects/objects.go",
		Old: `if only := r.Type(c.Driver); only != "" {`, New: `if only := r.Type(c.Driver); true {`,
		Package: "./pkg/cluster/demand/objects", Test: "TestDemand_Request_AsksForTheDevicesThatItCouldGet",
	},
	{
		Name: "classes of groups go while nodes publish none", File: "pkg/cluster/controller/clusterview.go",
		Old: "n.partitioned.With(auto...)", New: "n.partitioned",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_NodesWithoutGroups_ClassesOfGroupsStay",
	},
	{
		Name: "a node with a claim's partition stops serving", File: "pkg/wire/demand/serving.go",
		Old: "	for _, node := range holders {\n		o.nodes[node] = true\n	}\n", New: "",
		Package: "./pkg/wire/demand", Test: "TestServing_NobodyWaitsForAnHour_HoldersAndReserveStay",
	},
	{
		Name: "a waiting pod has no more nodes serve", File: "pkg/wire/demand/serving.go",
		Old: "		more = min(max((growthFactor-1)*len(o.nodes), 1), len(others))\n", New: "		more = 0\n",
		Package: "./pkg/wire/demand", Test: "TestServing_PodWaits_EachNodeWithRoomServesInTheEnd",
	},
	{
		Name: "a pod for few nodes has none of them serve", File: "pkg/wire/demand/serving.go",
		Old: "		s.Limited = !o.serve(what, sorted, may, &left) || s.Limited\n", New: "		_ = may\n",
		Package: "./pkg/wire/demand", Test: "TestServing_PodForSomeNodes_OneServesAtOnce",
	},
	{
		Name: "nodes without room serve for ever", File: "pkg/wire/demand/serving.go",
		Old: "			delete(o.nodes, c.Node)\n		}\n	}\n	o.full", New: "		}\n	}\n	o.full",
		Package: "./pkg/wire/demand", Test: "TestServing_NodesFillUp_OnlyHoldersStay",
	},
	{
		Name: "a node that a pod does not tolerate serves it", File: "pkg/cluster/waiting/node.go",
		Old: "!known[one.Cure] {", New: "!known[one.Cure] && t.Key == \"\" {",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_PodForFewNodes_OneServesAtOnce",
	},
	{
		Name: "a pod waits for none once its scheduler fails", File: "pkg/cluster/waiting/waiting.go",
		Old: "c.Reason != corev1.PodReasonSchedulingGated {", New: "c.Reason == corev1.PodReasonUnschedulable {",
		Package: "./pkg/cluster/waiting", Test: "TestSaidOf_Conditions_FirstTimeAndMessage",
	},
	{
		Name: "pods are evicted because a scheduler fails", File: "pkg/cluster/preempt/step.go",
		Old: "w.said.Unschedulable && w.said.Lacks() > 0", New: "w.said.Lacks() > 0",
		Package: "./pkg/cluster/preempt", Test: "TestKeeper_PodThatMayNotPreempt_EvictsNone",
	},
	{
		Name: "a claim of several pods is not tied to its node", File: "pkg/cluster/controller/trim.go",
		Old: "a.Devices.Config = nil; ofPod {", New: "a.Devices.Config = nil; ofPod || true {",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_PodForFewNodes_OneServesAtOnce",
	},
	{
		Name: "the plugin serves beside another driver of its name", File: "pkg/node/kubeletplugin/plugin.go",
		Old: "	if err := p.alone(ctx); err != nil {\n		return err\n	}\n", New: "",
		Package: "./pkg/node/kubeletplugin", Test: "TestPlugin_OtherDriverOfThatName_StopsAndPublishesNothing",
	},
	{
		Name: "a request with a later alternative waits for few nodes", File: "pkg/cluster/demand/objects/objects.go",
		Old: " || r.Parent != \"\" && !last[r.Name]", New: "",
		Package: "./pkg/cluster/demand/objects", Test: "TestEverywhere_RequestThatDoesNotWait_AllNodesPublish",
	},
	{
		Name: "a node with a share stops sharing", File: "pkg/cluster/demand/objects/holdings.go",
		Old: "		what = append(what, demand.Shares)\n", New: "		_ = what\n",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_ClaimOfAShare_FewNodesServe",
	},
	{
		Name: "GPUs are shared on demand although claims do not wait for it", File: "pkg/cluster/demand/keeper.go",
		Old: "	if !k.SharesOnDemand {", New: "	if false {",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_NoPolicyForShares_AllNodesShare",
	},
	{
		Name: "a device with a share becomes exclusive", File: "pkg/node/resourceslices/device.go",
		Old: "	if b.o.Taints && !share {", New: "	if b.o.Taints {",
		Package: "./pkg/node/resourceslices", Test: "TestBuild_SharesEndOrAreHeld_SchedulerForgetsNone",
	},
	{
		Name: "shares end without a taint", File: "pkg/node/resourceslices/device.go",
		Old: "		s.offer = &o\n		return NoDemand\n", New: "		s.offer = &o\n",
		Package: "./pkg/node/resourceslices", Test: "TestBuild_SharesEndOrAreHeld_SchedulerForgetsNone",
	},
	{
		Name: "the scheduler is woken again and again", File: "pkg/cluster/podevents/kind.go",
		Old: "one.woken >= maxWakes || ", New: "",
		Package: "./pkg/cluster/podevents", Test: "TestKeeper_DevicesAreFree_SchedulerIsWokenSeldom",
	},
	{
		Name: "a sample with another content is believed", File: "pkg/cluster/pool/samples.go",
		Old: "if l.Name() == name {", New: `if l.Name() != "" {`,
		Package: "./pkg/cluster/pool", Test: "TestSamplesLearn_WrongSample_IsIgnored",
	},
	{
		Name: "a sample node that publishes no sample stays", File: "pkg/cluster/demand/samples.go",
		Old: `n.name != "" && rest > 0`, New: `n.name != "" && rest > -1<<60`,
		Package: "./pkg/cluster/demand", Test: "TestSampleNodes_NodesComeAndGo_OneForEachLayout",
	},
	{
		Name: "partitions of a layout that becomes known are unknown on other nodes", File: "pkg/cluster/controller/clusterview.go",
		Old: "	if len(learnt) == 0 {\n", New: "	if true {\n",
		Package: control, Test: "TestController_SampleOfOneNode_CountsForAll",
	},
	{
		Name: "nodes without slices are remembered for ever", File: "pkg/cluster/controller/clusterview.go",
		Old: "			delete(n.known, name)\n", New: "			_ = name\n",
		Package: control, Test: "TestController_ManyChanges_MapsStaySmall",
	},
	{
		Name: "the oldest class serves an extended resource", File: "pkg/cluster/selector/resources.go",
		Old: "cmp.Compare(b.CreationTimestamp.UnixNano(), a.CreationTimestamp.UnixNano())", New: "cmp.Compare(a.CreationTimestamp.UnixNano(), b.CreationTimestamp.UnixNano())",
		Package: "./pkg/cluster/selector", Test: "TestResources_RandomClasses_AsTheSchedulerChooses",
	},
	{
		Name: "equally old classes serve a resource by their order", File: "pkg/cluster/selector/resources.go",
		Old: "cmp.Compare(a.Name, b.Name))", New: "0)",
		Package: "./pkg/cluster/selector", Test: "TestResources_RandomClasses_AsTheSchedulerChooses",
	},
	{
		Name: "extended resources are remembered for ever", File: "pkg/cluster/controller/classes.go",
		Old: "if len(s.seen) <= maxResources {", New: "if true {",
		Package: control, Test: "TestController_ManyChanges_MapsStaySmall",
	},
	{
		Name: "passes over the cluster take a whole core", File: "pkg/cluster/controller/controller.go",
		Old: "pause = max(pause, pauseAfter(time.Since(began)))", New: "_ = pauseAfter(time.Since(began))",
		Package: control, Test: "TestRepeat_SlowPass_TakesAFifthOfTheTime",
	},
	{
		Name: "each write of a claim causes a pass", File: "pkg/cluster/demand/objects/objects.go",
		Old: "	if slices.Equal(was, is) {\n		return false\n	}\n	if a.count == nil {", New: "	if a.count == nil {",
		Package: "./pkg/cluster/demand", Test: "TestAskedKeeper_ForeignWritesOnAClaim_NoPass",
	},
	{
		Name: "what a deleted claim asked for stays", File: "pkg/cluster/demand/objects/objects.go",
		Old: "if a.count[one]--; a.count[one] <= 0 {", New: "if a.count[one]--; false {",
		Package: "./pkg/cluster/demand/objects", Test: "TestAsks_ObjectsChange_CountsFollow",
	},
	{
		Name: "past namespaces have series without limit", File: "pkg/node/usage/usage.go",
		Old: "past > keepNamespaces || ", New: "past > 2*keepNamespaces || ",
		Package: "./pkg/node/usage", Test: "TestCounters_ManyNamespaces_LastOnesStay",
	},
	{
		Name: "an unknown value that selectors may read is left out", File: "pkg/node/resourceslices/device.go",
		Old: "			value = a.unknown()\n", New: "			_ = a.unknown()\n",
		Package: "./pkg/node/resourceslices", Test: "TestBuild_UnknownValues_OnlyNeededOnesPublished",
	},
	{
		Name: "a plugin may publish devices that lack attributes", File: ownSlices,
		Old: "        variables.needs[d.attributes['type'].string][0].all(name, name in d.attributes) &&\n", New: "",
		Package: charts, Test: "TestSlicesPolicy_AnyValueOfAnyField_SchedulerGoesOn",
	},
	{
		Name: "a plugin may publish conditions of binding", File: ownSlices,
		Old: "'taints', 'allowMultipleAllocations']", New: "'taints', 'allowMultipleAllocations', 'bindingConditions']",
		Package: charts, Test: "TestSlicesPolicy_AnyValueOfAnyField_SchedulerGoesOn",
	},
	{
		Name: "a plugin may publish lists", File: ownSlices,
		Old: "kind in ['string', 'int', 'bool', 'version'])", New: "true)",
		Package: charts, Test: "TestSlicesPolicy_AnyValueOfAnyField_SchedulerGoesOn",
	},
	{
		Name: "a plugin may publish any kind of an attribute", File: ownSlices,
		Old: "        !(name in variables.kinds) || ", New: "        !(name in variables.kinds) || true || ",
		Package: charts, Test: "TestSlicesPolicy_AnyValueOfAnyField_SchedulerGoesOn",
	},
	{
		Name: "a plugin may publish an attribute under two names", File: ownSlices,
		Old: "        !name.startsWith('{{ .Values.driverName }}/')))", New: "        true))",
		Package: charts, Test: "TestSlicesPolicy_AnyValueOfAnyField_SchedulerGoesOn",
	},
	{
		Name: "a plugin may publish any counter", File: ownSlices,
		Old: " +\n        [object == null ? [] : object.spec.?sharedCounters.orValue([]).map(s,\n        s.?counters.orValue({}).map(name, s.counters[name].value))]", New: "",
		Package: charts, Test: "TestSlicesPolicy_AnyValueOfAnyField_SchedulerGoesOn",
	},
	{
		Name: "a plugin may publish any range of a request policy", File: ownSlices,
		Old: " +\n        [?c.?requestPolicy.?validRange.?min, ?c.?requestPolicy.?validRange.?max, ?c.?requestPolicy.?validRange.?step]", New: "",
		Package: charts, Test: "TestSlicesPolicy_AnyValueOfAnyField_SchedulerGoesOn",
	},
	{
		Name: "a plugin may publish amounts of any size", File: ownSlices,
		Old: " && !quantity(string(a)).isGreaterThan(quantity('1Pi'))", New: "",
		Package: charts, Test: "TestSlicesPolicy_AnyValueOfAnyField_SchedulerGoesOn",
	},
	{
		Name: "a value that is unset is refused", File: chart + "/templates/_checks.tpl",
		Old: "$plugin.metrics.gpuHttpEndpoint | default \"\" |", New: "$plugin.metrics.gpuHttpEndpoint |",
		Package: charts, Test: "TestValues_NullOfTextThatMayBeEmpty_RendersAsEmpty",
	},
	{
		Name: "the controller's Service has a name that the API server refuses", File: chart + "/templates/monitoring.yaml",
		Old: "{{- include \"gpu-dra-driver.namesServices\" . }}\n", New: "",
		Package: charts, Test: "TestNames_OfRelease_AreNamesOfServices",
	},
	{
		Name: "a review's turn goes to the client that asks most", File: "internal/peers/peers.go",
		Old: "g.running[q.peer] < g.running[first.peer] ||\n				g.running[q.peer] == g.running[first.peer] && q.number", New: "q.number",
		Package: "./internal/peers", Test: "TestServer_OnePeerHasManyRequests_OtherPeersTurnComesNext",
	},
	{
		Name: "the bodies of one client take the memory of all", File: "internal/peers/peers.go",
		Old: "of[r.peer] > of[most.peer] || of[r.peer] == of[most.peer] && r.bytes > most.bytes", New: "r.bytes < most.bytes",
		Package: "./internal/peers", Test: "TestServer_BodiesOfOnePeerTakeTheMemory_OtherPeersBodyIsRead",
	},
	{
		Name: "the oldest connection ends, of any peer", File: "internal/peers/peers.go",
		Old: "of[b.peer]-of[a.peer], cmp", New: "cmp",
		Package: "./internal/peers", Test: "TestListen_AtTheLimit_ConnectionThatEnds",
	},
	{
		Name: "an API server's kept connection ends as it asks", File: "internal/peers/peers.go",
		Old: "			return oldestIdle\n", New: "			return idle\n",
		Package: "./internal/peers", Test: "TestListen_AtTheLimit_ConnectionThatEnds",
	},
	{
		Name: "a new client's handshake ends before idle connections", File: "internal/peers/peers.go",
		Old: "return idle // Its handshake", New: "return fresh // Its handshake",
		Package: "./internal/peers", Test: "TestListen_Handshakes_OldestEndsAndKeptConnectionStays",
	},
	{
		Name: "a review that runs ends for a new connection", File: "internal/peers/peers.go",
		Old: "o == c || state == running:", New: "o == c:",
		Package: "./internal/peers", Test: "TestListen_AtTheLimit_ConnectionThatEnds",
	},
	{
		Name: "a review ends, and idle connections of its peer stay", File: "internal/peers/peers.go",
		Old: "	q.connection.is(running)\n", New: "	q.connection.is(idle)\n",
		Package: "./internal/peers", Test: "TestListen_RequestRuns_IdleConnectionsOfItsPeerEnd",
	},
	{
		Name: "a connection ends before its first review is sent", File: "internal/peers/peers.go",
		Old: "		at = time.Now().Add(forIdle)\n", New: "",
		Package: "./internal/peers", Test: "TestServer_FreshConnection_AnswersItsLateRequest",
	},
	{
		Name: "half a header that arrives with a handshake is not seen", File: "internal/peers/peers.go",
		Old: "		data = data[:1]\n", New: "",
		Package: "./internal/peers", Test: "TestServer_HalfHeader_ConnectionEndsLongBeforeAnIdleOne",
	},
	{
		Name: "half a header keeps its connection as long as an idle one", File: "internal/peers/peers.go",
		Old: "		_ = c.Conn.SetReadDeadline(time.Now().Add(c.listener.forHeader())) // The next read shows an error.\n", New: "",
		Package: "./internal/peers", Test: "TestServer_HalfHeader_ConnectionEndsLongBeforeAnIdleOne",
	},
	{
		Name: "a server waits less than a slow client", File: "internal/peers/peers.go",
		Old: "return min(l.Time, 10*time.Second)", New: "return l.Time / 2",
		Package: "./internal/peers", Test: "TestServer_ClientIsSlow_AnsweredAsLongAsItWaits",
	},
	{
		Name: "a review of any number of parts is decoded", File: "pkg/cluster/controller/webhook.go",
		Old: "if p.count > maxParts {", New: "if false {",
		Package: control, Test: "TestWebhooks_ManyEmptyParts_LittleMemory",
	},
	{
		Name: "a published device denies a class", File: "pkg/cluster/admission/class.go",
		Old: "		r.warn(\"%s\", text)\n	}\n	for _, e", New: "		r.Errors = field.ErrorList{field.Forbidden(spec, text)}\n	}\n	for _, e",
		Package: "./pkg/cluster/admission", Test: "TestReview_OneNodePublishesAnything_CorrectObjectsAreAllowed",
	},
	{
		Name: "a model takes the name of another class", File: "pkg/cluster/deviceclasses/deviceclasses.go",
		Old: "if reserved.MatchString(prefix + model) {", New: "if false {",
		Package: "./pkg/cluster/deviceclasses", Test: "TestBuild_ModelsNamedLikeOtherClasses_EachHasItsOwn",
	},
	{
		Name: "reviews ask the newest allocator, whatever the server has", File: "pkg/cluster/controller/clusterview.go",
		Old: "		asker.Server = *version\n", New: "		_ = version\n",
		Package: control, Test: "TestController_ServerUpgraded_ReviewsAskItsAllocator",
	},
	{
		Name: "a group counts by a size that its selector only names", File: chart + "/templates/policies.yaml",
		Old: "e.matches(r\"\"\"{{ $sized }}\"\"\")", New: "e.matches('gpuCount *== *[0-9]+')",
		Package: charts, Test: "TestPolicies_GroupsBySelector_NoneLargerThanAllowed",
	},
	{
		Name: "any class with the chart's selector is not reviewed", File: chart + "/templates/webhook.yaml",
		Old: " || object.spec.?config.orValue([]).size() > 0 ||", New: " ||",
		Package: charts, Test: "TestWebhooks_Objects_RightOneIsCalled",
	},
	{
		Name: "a pod of equal priority is preempted", File: "pkg/cluster/pack/preempt.go",
		Old: "case Priority(pod) >= r.below:", New: "case Priority(pod) > r.below:",
		Package: "./pkg/cluster/pack", Test: "TestPreempt_PodThatMayNotBeAVictim_IsNone",
	},
	{
		Name: "preemption ignores disruption budgets", File: "pkg/cluster/pack/preempt.go",
		Old: "!p.o.preempt.Violate && c.cost.victims.violations > 0", New: "!p.o.preempt.Violate && c.cost.victims.violations < 0",
		Package: "./pkg/cluster/pack", Test: "TestPreempt_DisruptionBudget_HoldsUnlessTheValueSaysSo",
	},
	{
		Name: "a pod that the scheduler tries first takes nothing", File: "pkg/cluster/pack/preempt.go",
		Old: "range p.o.preempt.Before {", New: "range p.o.preempt.Before[:0] {",
		Package: "./pkg/cluster/pack", Test: "TestPreempt_AnotherPodIsFirst_TakesItsPartOfTheNode",
	},
	{
		Name: "victims are evicted before all may be", File: "pkg/cluster/preempt/evict.go",
		Old:     "a.evictOne(ctx, v, now, metav1.DryRunAll); err != nil {",
		New:     "a.evictOne(ctx, v, now, metav1.DryRunAll); err != nil && ctx.Err() != nil {",
		Package: "./pkg/cluster/preempt", Test: "TestKeeper_EvictionRefused_NoneIsEvicted",
	},
	{
		Name: "preemption frees devices one after the other", File: "pkg/cluster/pack/preempt.go",
		Old: "p.o.preempt.Together && len(released(c.set)) > 1 {", New: "p.o.preempt.Together && len(released(c.set)) > 9 {",
		Package: "./pkg/cluster/pack", Test: "TestPreempt_Together_DevicesOfOneClaimAndNoneForASuccessor",
	},
	{
		Name: "victims are evicted before their GPUs are reserved", File: "pkg/cluster/preempt/reserve.go",
		Old: "return t.Device == i && t.Taint.Key == wire.ReservedTaint\n\t\t\t}) {", New: "return t.Device == i\n\t\t\t}) && len(names) > 99 {",
		Package: "./pkg/cluster/preempt", Test: "TestKeeper_NoPluginTaintsReservedGPUs_EvictsForOneClaimOnly",
	},
	{
		Name: "a reservation ends before the last victim is gone", File: "pkg/cluster/preempt/reserve.go",
		Old: "case e.gone.IsZero():", New: "case e.gone.IsZero() && e.reservation == nil:",
		Package: "./pkg/cluster/preempt", Test: "TestKeeper_VictimsOfSeveralClaims_GPUsAreReservedUntilAllAreGone",
	},
	{
		Name: "a reservation stays for a pod that is gone", File: "pkg/cluster/preempt/reserve.go",
		Old: "if err := r.annotate(ctx, r.node, r.reservation, time.Time{}); err != nil {", New: "if err := ctx.Err(); err != nil {",
		Package: "./pkg/cluster/preempt", Test: "TestKeeper_ReservationIsNeedless_Ends",
	},
	{
		Name: "a reservation has no end", File: "pkg/wire/reservation.go",
		Old: "if change = until; !now.Before(until) {", New: "if change = until; now.IsZero() {",
		Package: "./pkg/node/kubeletplugin/publishing", Test: "TestCordons_Reservation_EndsWithoutItsWriter",
	},
	{
		Name: "a pod whose victims leave slowly preempts again", File: "pkg/cluster/preempt/step.go",
		Old: "never || k.served(w) || !waits", New: "never || !waits",
		Package: "./pkg/cluster/preempt", Test: "TestKeeper_VictimsLeaveSlowly_NoOtherEviction",
	},
	{
		Name: "preemption does not step aside for the scheduler", File: "pkg/cluster/preempt/step.go",
		Old: "pod.ManagedFields, ours) && now", New: "pod.ManagedFields, ours) || now",
		Package: "./pkg/cluster/preempt", Test: "TestKeeper_PodThatMayNotPreempt_EvictsNone",
	},
	{
		Name: "a review on another path reserves", File: "pkg/cluster/budget/enforcement/path.go",
		Old: "		if !p.accepts(r.URL.Path) {\n", New: "		if r.URL.Path == \"\" {\n",
		Package: "./pkg/cluster/budget/enforcement", Test: "TestWebhooks_ForgedReview_ChangesNothing",
	},
	{
		Name: "without a secret path, any client may ask for a review under a budget", File: "pkg/cluster/budget/enforcement/reviews.go",
		Old: "		reviewed = controller.OnlyClients(reviewed)\n", New: "",
		Package: "./pkg/cluster/budget/enforcement", Test: "TestWebhooks_ForgedReview_ChangesNothing",
	},
	{
		Name: "an old path stays accepted for ever", File: "pkg/cluster/budget/enforcement/path.go",
		Old: "			p.accepted[path] = now.Add(acceptFor)\n", New: "			p.accepted[path] = now.Add(10000 * acceptFor)\n",
		Package: "./pkg/cluster/budget/enforcement", Test: "TestReviewPath_Renewed_EveryInstanceAcceptsItInTime",
	},
	{
		Name: "API servers use a path before the other instances know it", File: "pkg/cluster/budget/enforcement/path.go",
		Old: "checkInterval, p.write(ctx, config, newPath(), false)", New: "checkInterval, p.write(ctx, config, newPath(), true)",
		Package: "./pkg/cluster/budget/enforcement", Test: "TestReviewPath_Renewed_EveryInstanceKnowsItBefore",
	},
	{
		Name: "the path of the chart is accepted", File: "pkg/cluster/budget/enforcement/path.go",
		Old: "found && err == nil && len(data) == pathBytes", New: "found || path == Path || len(data) > 0 && err == nil",
		Package: "./pkg/cluster/budget/enforcement", Test: "TestReviewPath_AnyConfiguration_GetsASecretOne",
	},
	{
		Name: "a review without an answer leaves the path", File: "pkg/cluster/budget/enforcement/path.go",
		Old: "r.Context().Err() != nil || time.Since(began) >= lateReview", New: "time.Since(began) >= lateReview",
		Package: "./pkg/cluster/budget/enforcement", Test: "TestReviewPath_ReviewWithoutAnswer_Renews",
	},
	{
		Name: "a path whose failure no instance saw stays", File: "pkg/cluster/budget/enforcement/keeper.go",
		Old: "		k.path.Renew()\n", New: "",
		Package: "./pkg/cluster/budget/enforcement", Test: "TestReviewPath_Budgets_LeaderRenewsItRegularly",
	},
	{
		Name: "a skewed clock drops a reservation", File: "pkg/cluster/budget/reserve.go",
		Old: "	return known && now.Sub(first) >= Expiry\n", New: "	return known && !first.IsZero() && now.Sub(r.Since.Time) >= Expiry\n",
		Package: "./pkg/cluster/budget/enforcement", Test: "TestBudgets_ClocksDiffer_ReservationStaysItsTime",
	},
	{
		Name: "the queue of a deleted namespace stays", File: "pkg/cluster/budget/enforcement/reviews.go",
		Old: "	if !d.busy && b.queues[namespace] == d {\n", New: "	if d.busy && b.queues[namespace] == d {\n",
		Package: "./pkg/cluster/budget/enforcement", Test: "TestBudgets_NamespacesComeAndGo_NoDeskStays",
	},
	{
		Name: "an archive has the path of reviews", File: "pkg/show/bundle/redact.go",
		Old: "`(/budget/)([0-9a-f]{16,})`", New: "`(/budget/)(-{16,})`",
		Package: "./pkg/show/bundle", Test: "TestRedact_PathOfReviews_IsNotKept",
	},
	{
		Name: "a review without an answer renews no path", File: "cmd/dra-controller/main.go",
		Old: "		server.Server.Handler = p.watcher.Watch(server.Server.Handler)\n", New: "",
		Package: "./cmd/dra-controller", Test: "TestRun_EachPart_HasItsEffect",
	},
}
