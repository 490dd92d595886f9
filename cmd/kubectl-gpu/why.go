// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/nodelabels"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/show/view"
)

func newWhy(f *factory) *cobra.Command {
	w := &whyCommand{}
	c := &cobra.Command{
		Use:   "why (POD | claim/NAME | job/NAME | -f FILE)",
		Short: "Explain why a pod or claim waits for devices",
		Long: "Explain whether the scheduler can allocate the claims of a pod, and why not.\n" +
			"\n" +
			"The scheduler's own allocator decides for each node, with the claims and taints of now. If it finds no " +
			"devices, it\n" +
			"is asked again with one thing changed: a claim gone, a taint tolerated, a selector dropped. The " +
			"smallest changes that\n" +
			"help are printed last. Of a Job, Deployment, ReplicaSet, StatefulSet or DaemonSet it takes the pod that " +
			"has waited longest.\n" +
			"With -f the pods, claims and templates of a file are judged as if they were created now, one after the " +
			"other.\n" +
			"Exit codes with -f: 0 all fit, 1 one waits, 2 one is refused, or could not be read or judged.",
		Example: "  kubectl gpu why train-1\n" +
			"  kubectl gpu why claim/train-1 -n team-a -v\n" +
			"  kubectl gpu why job/train\n" +
			"  kubectl gpu why -f pod.yaml\n" +
			"  kubectl gpu why -f pod.yaml --board hgx-h100",
		Args: cobra.MaximumNArgs(1),
	}
	w.output = f.addOutput(c)
	c.Flags().StringVarP(&w.file, "filename", "f", "",
		"File with pods, claims, templates or workloads; - is the standard input.")
	c.Flags().BoolVarP(&w.devices, "verbose", "v", false,
		"Say for each device which selector, taint, counter, capacity or claim is against it.")
	w.board = addBoard(c, "Judge by an empty node with this board, without a cluster.")
	c.Flags().DurationVar(&w.limit, "time-limit", why.DefaultLimit,
		"Time for an answer. The answer says where it is undecided.")
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 == (w.file == "") {
			return usageError{errors.New("name a pod or claim, or give a file with -f")}
		}
		if *w.board != "" && w.file == "" {
			return usageError{errors.New("--board needs the objects of a file: give it with -f")}
		}
		if w.limit <= 0 {
			return usageError{errors.New("--time-limit must be more than 0")}
		}
		return w.run(c.Context(), args)
	}
	return c
}

type whyCommand struct {
	*output
	file    string
	board   *string
	devices bool
	limit   time.Duration
}

func (w *whyCommand) run(ctx context.Context, args []string) error {
	namespace, err := w.namespace()
	if err != nil {
		return err
	}
	manifest := &why.Manifest{}
	if w.file != "" {
		if manifest, err = w.read(namespace); err != nil {
			fmt.Fprintf(w.ErrOut, "error: %v\n", err)
			return exitCode(2)
		}
	}
	if *w.board != "" {
		cluster, err := w.plannedCluster()
		if err != nil {
			return err
		}
		manifest.AddTo(cluster)
		return w.answer(ctx, cluster, manifest, nil, nil)
	}
	loading, cancel := w.bounded(ctx, defaultTimeout)
	defer cancel()
	r, err := w.reader()
	if err != nil {
		return err
	}
	g := getter{r, &why.Cluster{States: r.states}}
	asked, err := g.subjects(loading, namespace, args)
	if err != nil {
		return err
	}
	objects, err := r.load(loading, want{claims: true, classes: true, nodes: true, rules: true, allDrivers: true})
	if err != nil {
		return err
	}
	if err := g.add(loading, objects, manifest, append(asked, manifest.Pods...)...); err != nil {
		return err
	}
	return w.answer(ctx, g.cluster, manifest, asked, &g)
}

// code is the exit code for the objects of a file: 0 if all fit, 1 if one waits, and 2 if one is refused or not judged.
func code(all []why.Answer) error {
	worst := exitCode(0)
	for _, a := range all {
		switch {
		case a.Refuses():
			worst = 2
		case !a.Allowed():
			worst = max(worst, 1)
		}
	}
	if worst > 0 {
		return worst
	}
	return nil
}

// answer asks for each subject, after those of the file, and prints the answers. g is nil without a cluster.
func (w *whyCommand) answer(
	ctx context.Context, cluster *why.Cluster, m *why.Manifest, asked []why.Subject, g *getter,
) error {
	var records []record
	all := slices.Clone(m.Refused)
	o := why.Options{Driver: w.driver, Limit: w.limit, Devices: w.devices, Now: w.now()}
	subjects := append(make([]why.Subject, len(all)), append(m.Subjects(), asked...)...)
	for i, s := range subjects {
		var answer why.Answer
		switch {
		case i < len(m.Refused):
			answer = m.Refused[i]
		case w.file != "":
			answer = why.AskNew(ctx, cluster, s, o)
			all = append(all, answer)
		default:
			answer = why.Ask(ctx, cluster, s, o)
		}
		if g != nil {
			g.consider(ctx, &answer, s.Pod, o)
		}
		if g != nil && answer.Result == why.Fits {
			answer.Notes = append(answer.Notes, w.impediments(ctx, answer.Fits)...)
		}
		if w.table() {
			if i > 0 {
				fmt.Fprintln(w.Out)
			}
			fmt.Fprint(w.Out, painted(answer, w.colours()))
			if g != nil && s.Pod != nil && answer.Result == why.Waits &&
				slices.ContainsFunc(answer.Cures, func(c why.Cure) bool { return len(c.Release) > 0 }) {
				fmt.Fprintf(w.Out, "Perhaps moves of other pods make room too: kubectl gpu pack %s -n %s\n", s.Pod.Name,
					s.Pod.Namespace)
			}
			continue
		}
		kind, name, _ := strings.Cut(answer.Subject, " ")
		space, name, _ := strings.Cut(name, "/")
		records = append(records, record{namespace: space, name: kind + "/" + name, object: answer})
	}
	if len(m.Unread) > 0 {
		fmt.Fprintf(w.ErrOut, "note: not looked at: %s\n", strings.Join(m.Unread, ", "))
	}
	if !w.table() {
		if err := w.print("Explanation", "", records, ""); err != nil {
			return err
		}
	}
	return code(all)
}

// painted returns the text of an answer. Its first line has the colour of the result, and the cures are green.
func painted(a why.Answer, colours bool) string {
	out, cures := "", false
	for line := range strings.Lines(a.String()) {
		line = strings.TrimSuffix(line, "\n")
		colour := view.Colour(0)
		switch {
		case out == "" && (a.Result == why.Fits || a.Result == why.Settled):
			colour = view.Green
		case out == "" && a.Result == why.Refused:
			colour = view.Red
		case out == "":
			colour = view.Yellow
		case line == why.CuresHeading:
			cures = true
		case cures && strings.HasPrefix(line, "  - "):
			colour = view.Green
		case strings.HasPrefix(line, "Judged by "):
			colour = view.Grey
		}
		out += colour.Paint(colours, line) + "\n"
	}
	return out
}

// impediments says what else keeps a pod from a start on nodes. The answer is about devices only, so it counts without
// it.
func (w *whyCommand) impediments(ctx context.Context, nodes []string) []string {
	ctx, cancel := w.bounded(ctx, defaultTimeout)
	defer cancel()
	quiet := *w.factory
	quiet.ErrOut = io.Discard // The notes say what was not read.
	o, err := quiet.load(ctx, want{noSlices: true, pods: true, podLabels: view.DriverSelector, webhooks: true})
	if err != nil {
		return []string{fmt.Sprintf("whether the driver's plugins and its controller run was not looked at: %v", err)}
	}
	return view.Impediments(o.Diagnosis, nodes)
}

func (w *whyCommand) read(namespace string) (*why.Manifest, error) {
	in := w.In
	if w.file != "-" {
		file, err := os.Open(w.file)
		if err != nil {
			return nil, fmt.Errorf("read the manifest: %w", err)
		}
		defer func() { _ = file.Close() }()
		in = io.Reader(file)
	}
	m, err := why.ReadManifest(in, namespace)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", w.file, err)
	}
	if len(m.Subjects())+len(m.Refused) == 0 {
		return nil, fmt.Errorf("%s has no pod, claim or template", w.file)
	}
	return m, nil
}

// plannedCluster returns a cluster of one empty node with a board, and the classes of the chart and the controller.
func (w *whyCommand) plannedCluster() (*why.Cluster, error) {
	t, err := w.template(*w.board)
	if err != nil {
		return nil, err
	}
	cluster := &why.Cluster{}
	for i := range t.Slices {
		cluster.Slices = append(cluster.Slices, pool.Unshared(&t.Slices[i]))
	}
	labels := nodelabels.Of(pool.Of(cluster.Slices), w.driver)
	cluster.Nodes = []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: templateName, Labels: labels}}}
	built, _ := deviceclasses.Build(pool.Publishers([]pool.Pool{pool.Of(cluster.Slices)}), nil, deviceclasses.Options{
		Driver:         w.driver,
		Models:         true,
		Profiles:       true,
		Groups:         true,
		GPUs:           true,
		GPUResource:    "nvidia.com/gpu",
		ResourcePrefix: "nvidia.com/mig-",
	})
	for _, c := range built {
		cluster.Classes = append(cluster.Classes, c.DeviceClass)
	}
	domain := strings.TrimPrefix(w.driver, "gpu.")
	for name, kind := range map[string]gpu.Kind{"mig." + domain: gpu.KindMIG, "nvlink." + w.driver: gpu.KindGroup,
		"monitor." + w.driver: gpu.KindMonitor} {
		cluster.Classes = append(cluster.Classes, &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.DeviceClassSpec{
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
					Expression: fmt.Sprintf("device.driver == %q && device.attributes[%q].type == %q", w.driver,
						w.driver, kind),
				}}},
			},
		})
	}
	return cluster, nil
}

// getter reads the objects about single subjects.
type getter struct {
	*reader
	cluster *why.Cluster
}

// consider reads the pods that hold what a pod or a claim waits for, and says how they end.
func (g *getter) consider(ctx context.Context, a *why.Answer, pod *corev1.Pod, o why.Options) {
	if names := g.cluster.Holders(*a); len(names) > 0 {
		a.Consider(g.cluster, o, pod, read.Owner(ctx, g.client, pod), read.Holders(ctx, g.client, names))
	}
}

func (g *getter) subjects(ctx context.Context, namespace string, names []string) (out []why.Subject, err error) {
	for _, name := range names {
		s, err := g.subject(ctx, namespace, name)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// subject reads a pod or a claim. A name without a kind is a pod's, or else a claim's.
func (g *getter) subject(ctx context.Context, namespace, name string) (why.Subject, error) {
	kind, rest, qualified := strings.Cut(name, "/")
	if qualified {
		switch name = rest; strings.ToLower(kind) {
		case "claim", "claims", "resourceclaim", "resourceclaims":
			return g.claim(ctx, namespace, name)
		case "pod", "pods", "po":
		default:
			pod, err := g.ofWorkload(ctx, namespace, strings.ToLower(kind), name)
			if err != nil {
				return why.Subject{}, err
			}
			return why.Subject{Pod: pod}, g.events(ctx, pod)
		}
	}
	pod, err := g.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && !qualified {
		if claim, claimErr := g.claim(ctx, namespace, name); !apierrors.IsNotFound(claimErr) {
			return claim, claimErr
		}
		return why.Subject{}, fmt.Errorf("namespace %s has no pod and no ResourceClaim named %q", namespace, name)
	}
	if err != nil {
		return why.Subject{}, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	return why.Subject{Pod: pod}, g.events(ctx, pod)
}

// claim reads a claim, and its pod if one waits for it.
func (g *getter) claim(ctx context.Context, namespace, name string) (why.Subject, error) {
	claim, err := g.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return why.Subject{}, fmt.Errorf("read ResourceClaim %s/%s: %w", namespace, name, err)
	}
	if claim.Status.Allocation != nil {
		return why.Subject{Claim: claim}, nil
	}
	var pods []*corev1.Pod
	unscheduled := from(kind{resource: read.ClaimPods}, "spec.nodeName=", g.client.CoreV1().Pods(namespace))
	if err := g.read(ctx, unscheduled, "", appendTo(&pods)); err != nil {
		return why.Subject{}, err
	}
	for _, p := range pods {
		if slices.ContainsFunc(p.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool {
			return r.ResourceClaimName != nil && *r.ResourceClaimName == name
		}) ||
			slices.ContainsFunc(p.Status.ResourceClaimStatuses, func(r corev1.PodResourceClaimStatus) bool {
				return r.ResourceClaimName != nil && *r.ResourceClaimName == name
			}) {
			return why.Subject{Pod: p}, g.events(ctx, p)
		}
	}
	return why.Subject{Claim: claim}, nil
}

// events reads the warnings about a pod. Without the right the answer says so.
func (g *getter) events(ctx context.Context, pod *corev1.Pod) error {
	selector := fields.Set{"involvedObject.uid": string(pod.UID), "type": corev1.EventTypeWarning}.String()
	events := from(kind{resource: read.Events}, selector, g.client.CoreV1().Events(pod.Namespace))
	if err := g.read(ctx, events, "", appendTo(&g.cluster.Events)); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// add adds the objects of the whole cluster, of a manifest, and those that the subjects' pods name.
func (g *getter) add(ctx context.Context, o *objects, m *why.Manifest, subjects ...why.Subject) error {
	g.cluster.Slices, g.cluster.Claims = o.Slices, pointers(o.Claims)
	g.cluster.Classes, g.cluster.Rules, g.cluster.Nodes = pointers(o.Classes), pointers(o.Rules), pointers(o.CoreNodes)
	if o.Complete(read.Nodes) && g.cluster.Nodes == nil {
		g.cluster.Nodes = []*corev1.Node{}
	}
	g.cluster.ServerVersion, g.cluster.ServerVersionError = serverVersion(ctx, g.client)
	maps.Copy(g.cluster.States, o.States)
	m.AddTo(g.cluster)
	for _, s := range subjects {
		if s.Pod == nil {
			continue
		}
		if err := g.references(ctx, s.Pod); err != nil {
			return err
		}
	}
	return nil
}

func pointers[T any](all []T) (out []*T) {
	for i := range all {
		out = append(out, &all[i])
	}
	return out
}

// references reads the claims and templates that a pod names, unless they are known.
func (g *getter) references(ctx context.Context, pod *corev1.Pod) error {
	names := []string{}
	for _, r := range pod.Status.ResourceClaimStatuses {
		if r.ResourceClaimName != nil {
			names = append(names, *r.ResourceClaimName)
		}
	}
	for _, r := range pod.Spec.ResourceClaims {
		switch {
		case r.ResourceClaimName != nil:
			names = append(names, *r.ResourceClaimName)
		case r.ResourceClaimTemplateName == nil || g.hasTemplate(pod.Namespace, *r.ResourceClaimTemplateName):
		default:
			t, err := g.client.ResourceV1().ResourceClaimTemplates(pod.Namespace).Get(ctx, *r.ResourceClaimTemplateName,
				metav1.GetOptions{})
			if err == nil {
				g.cluster.Templates = append(g.cluster.Templates, t)
			} else if apierrors.IsForbidden(err) {
				g.cluster.States[read.ResourceClaimTemplates] = err
			} else if !apierrors.IsNotFound(err) {
				return fmt.Errorf("read ResourceClaimTemplate %s: %w", *r.ResourceClaimTemplateName, err)
			} else {
				g.similar(ctx, pod.Namespace)
			}
		}
	}
	for _, name := range names {
		if slices.ContainsFunc(g.cluster.Claims, func(c *resourceapi.ResourceClaim) bool {
			return c.Namespace == pod.Namespace && c.Name == name
		}) {
			continue
		}
		c, err := g.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			g.cluster.Claims = append(g.cluster.Claims, c)
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("read ResourceClaim %s: %w", name, err)
		} else {
			g.similar(ctx, pod.Namespace)
		}
	}
	return nil
}

// similar reads templates of a namespace, of which one can be meant instead of a name that does not exist. Without them
// an answer only lacks this hint.
func (g *getter) similar(ctx context.Context, namespace string) {
	list, err := g.client.ResourceV1().ResourceClaimTemplates(namespace).List(ctx, metav1.ListOptions{Limit: 500})
	if err != nil {
		return
	}
	for _, t := range pointers(list.Items) {
		if !g.hasTemplate(namespace, t.Name) {
			g.cluster.Templates = append(g.cluster.Templates, t)
		}
	}
}

func (g *getter) hasTemplate(namespace, name string) bool {
	return slices.ContainsFunc(g.cluster.Templates, func(t *resourceapi.ResourceClaimTemplate) bool {
		return t.Namespace == namespace && t.Name == name
	})
}
