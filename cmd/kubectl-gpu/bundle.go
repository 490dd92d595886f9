// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/bundle"
	"gpu-dra-driver/pkg/show/view"
)

// Bounds of an archive. Logs are read from their end.
const (
	bundleTimeout  = 3 * time.Minute
	defaultMaxSize = "64Mi"
	logLines       = 5000
	logBytes       = 1 << 20
)

func newBundle(f *factory) *cobra.Command {
	var file, maxSize string
	c := &cobra.Command{
		Use:   "bundle [NODE...]",
		Args:  cobra.ArbitraryArgs,
		Short: "Write an archive for support",
		Long: "Write an archive with the slices, claims, classes and nodes, the driver's pods with their logs, " +
			"metrics and Events,\n" +
			"and the output of doctor, layout and claims; of some nodes, or of all. Passwords, tokens and keys are " +
			"replaced by\n" +
			bundle.Redacted + ", and so are the values of variables, annotations and flags that the driver does not " +
			"know, and the\n" +
			"parameters and data of other drivers. Names of namespaces, pods and nodes stay: look through the " +
			"archive before you\n" +
			"send it. missing.txt in the archive lists what could not be read.",
		Example: "  kubectl gpu bundle\n  kubectl gpu bundle n1 -f n1.tar.gz",
	}
	c.ValidArgsFunction = f.completeNodes
	c.Flags().StringVarP(&file, "filename", "f", "",
		"File to write, which must not exist; - is the standard output. Default: gpu-bundle-TIME.tar.gz")
	c.Flags().StringVar(&maxSize, "max-size", defaultMaxSize,
		"Limit on the size of all files together, before compression.")
	c.RunE = func(c *cobra.Command, args []string) error {
		limit, err := resource.ParseQuantity(maxSize)
		if err != nil || limit.Value() <= 0 {
			return usageError{fmt.Errorf("--max-size=%s: write a size, such as %s", maxSize, defaultMaxSize)}
		}
		ctx, cancel := f.bounded(c.Context(), bundleTimeout)
		defer cancel()
		if file == "" {
			file = "gpu-bundle-" + f.now().UTC().Format("20060102-150405") + ".tar.gz"
		}
		return f.bundle(ctx, args, file, limit.Value())
	}
	return c
}

// collector reads the cluster into an archive.
type collector struct {
	*reader
	*bundle.Archive
	nodes []string
}

func (f *factory) bundle(ctx context.Context, nodes []string, file string, limit int64) (err error) {
	r, err := f.reader()
	if err != nil {
		return err
	}
	// Without an API server there is nothing to collect.
	server, err := r.client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("read the version of the API server: %w", err)
	}
	out := f.Out
	if file != "-" {
		created, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
		defer func() {
			if err = errors.Join(err, created.Close()); err != nil {
				_ = os.Remove(file) // Half an archive is of no use.
			}
		}()
		out = created
	}
	a := &collector{r, bundle.New(out, f.now(), limit), nodes}
	a.Add("versions.txt", fmt.Appendf(nil, "kubectl-gpu %s\nAPI server %s\n", version, server))
	a.collect(ctx)
	files, missing, err := a.Close()
	if errors.Is(ctx.Err(), context.Canceled) {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(f.ErrOut, "wrote %s: %d files", file, files)
	if missing > 0 {
		fmt.Fprintf(f.ErrOut, "; %d parts are missing, see missing.txt in it", missing)
	}
	fmt.Fprintln(f.ErrOut)
	return nil
}

// collect adds all files: first the small ones, which say most.
func (a *collector) collect(ctx context.Context) {
	for _, args := range [][]string{
		append([]string{"doctor", "-v"}, a.nodes...), append([]string{"layout"}, a.nodes...),
		append([]string{"ls", "-o", "wide"}, a.nodes...),
		append([]string{"slices", "-o", "wide"}, a.nodes...), {"claims", "-A", "-o", "wide"}, append([]string{"top"},
			a.nodes...), {"top", "claims", "-A", "-o", "wide"},
	} {
		a.command(ctx, args)
	}
	all, err := a.quiet().diagnosis(ctx, a.nodes)
	if err != nil {
		a.Missing("driver's pods, logs and claims: %v", err)
		return
	}
	for _, text := range all.Unseen {
		a.Missing("%s", text)
	}
	claims := map[string]bool{}
	for _, c := range view.Claims(all.Objects, all.Classes) {
		claims[c.String()] = len(a.nodes) == 0 || c.Node == "" || slices.Contains(a.nodes, c.Node)
	}
	a.objects(ctx, "resource.k8s.io/v1", "deviceclasses", "", "", nil)
	if all.RuleVersion != "" {
		a.objects(ctx, "resource.k8s.io/"+all.RuleVersion, "devicetaintrules", "", "", nil)
	}
	a.objects(ctx, "resource.k8s.io/v1", "resourceclaims", "", "", func(u *unstructured.Unstructured) bool {
		return claims[u.GetNamespace()+"/"+u.GetName()]
	})
	chart := view.ChartSelector(all.Pods)
	a.objects(ctx, "admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", "", chart, nil)
	pods := view.DriverPods(all.Pods)
	var namespaces []string
	for _, p := range pods {
		if !slices.Contains(namespaces, p.Namespace) {
			namespaces = append(namespaces, p.Namespace)
		}
	}
	for _, namespace := range namespaces {
		a.objects(ctx, "v1", "events", namespace, "", nil)
		a.objects(ctx, "v1", "pods", namespace, "", func(u *unstructured.Unstructured) bool {
			return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == u.GetName() })
		})
		a.objects(ctx, "apps/v1", "daemonsets", namespace, chart, nil)
		a.objects(ctx, "apps/v1", "deployments", namespace, chart, nil)
		a.objects(ctx, "v1", "configmaps", namespace, chart, nil)
	}
	for _, p := range pods {
		if a.wanted(p.Spec.NodeName) || view.IsController(p) {
			a.logs(ctx, p)
		}
	}
	published := map[string]bool{}
	for _, s := range all.Slices {
		published[s.Node] = true
	}
	a.objects(ctx, "v1", "nodes", "", "", func(u *unstructured.Unstructured) bool {
		return published[u.GetName()] && a.wanted(u.GetName())
	})
	a.objects(ctx, "v1", "events", metav1.NamespaceAll, "", func(u *unstructured.Unstructured) bool {
		kind, _, _ := unstructured.NestedString(u.Object, "involvedObject", "kind")
		name, _, _ := unstructured.NestedString(u.Object, "involvedObject", "name")
		return kind == "ResourceClaim" && claims[u.GetNamespace()+"/"+name] || kind == "Node" && published[name] &&
			a.wanted(name)
	})
	a.objects(ctx, "resource.k8s.io/v1", "resourceslices", "", "", func(u *unstructured.Unstructured) bool {
		driver, _, _ := unstructured.NestedString(u.Object, "spec", "driver")
		node, _, _ := unstructured.NestedString(u.Object, "spec", "nodeName")
		return driver == a.driver && a.wanted(node)
	})
}

func (a *collector) wanted(node string) bool {
	return len(a.nodes) == 0 || slices.Contains(a.nodes, node)
}

// quiet returns the factory without its output.
func (a *collector) quiet() *factory {
	f := *a.factory
	f.IOStreams = genericiooptions.NewTestIOStreamsDiscard()
	return &f
}

// command adds the output of another command. Its notes go to the same file.
func (a *collector) command(ctx context.Context, args []string) {
	f := a.quiet()
	var out strings.Builder
	f.Out, f.ErrOut = &out, &out
	root := newRootOf(f)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if code := exitCode(0); err != nil && !errors.As(err, &code) {
		fmt.Fprintf(&out, "error: %s\n", sentence(err))
		a.Missing("kubectl gpu %s: %s", args[0], sentence(err))
	}
	name := args[0]
	if len(args) > 1 && args[1] == "claims" {
		name += "-claims"
	}
	a.Add(name+".txt", []byte("$ kubectl gpu "+strings.Join(args, " ")+"\n"+out.String()))
}

// objects adds the objects of a resource, in files of a page each, until the archive is full.
func (a *collector) objects(
	ctx context.Context, groupVersion, resource, namespace, labels string, keep func(*unstructured.Unstructured) bool,
) {
	at, err := schema.ParseGroupVersion(groupVersion)
	if err != nil {
		a.Missing("%s: %v", resource, err)
		return
	}
	name := strings.Trim("objects/"+namespace+"/"+resource, "/")
	n := 0
	list := a.dynamic.Resource(at.WithResource(resource)).Namespace(namespace).List
	for page, err := range read.Pages(ctx, metav1.ListOptions{LabelSelector: labels, Limit: pageSize}, list) {
		var text strings.Builder
		for i := 0; err == nil && i < len(page.Items); i++ {
			u := &page.Items[i]
			if keep != nil && !keep(u) {
				continue
			}
			bundle.RedactObject(u.Object, a.driver)
			var data []byte
			data, err = yaml.Marshal(u.Object)
			fmt.Fprintf(&text, "---\n%s", data)
		}
		if err != nil {
			a.Missing("%s: %s", name, sentence(err))
			return
		}
		file := name + ".yaml"
		if n++; n > 1 {
			file = fmt.Sprintf("%s-%d.yaml", name, n)
		}
		if text.Len() > 0 || n == 1 {
			a.Add(file, []byte(text.String()))
		}
		if a.Full(1) {
			return
		}
	}
}

// logs adds the logs and the metrics of a pod. A container that restarted has the log of its previous run too.
func (a *collector) logs(ctx context.Context, p corev1.Pod) {
	name := p.Namespace + "/" + p.Name
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		for _, previous := range []bool{true, false} {
			if previous && s.RestartCount == 0 {
				continue
			}
			file := "logs/" + name + "/" + s.Name
			if previous {
				file += "-previous"
			}
			lines, limit := int64(logLines), int64(logBytes)
			text, err := a.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
				Container: s.Name, Previous: previous, TailLines: &lines, LimitBytes: &limit, Timestamps: true,
			}).DoRaw(ctx)
			if err != nil {
				a.Missing("%s.log: %s", file, sentence(err))
				continue
			}
			a.Add(file+".log", text)
		}
	}
	e, ok := view.MetricsEndpoint(p)
	if !ok {
		return
	}
	text, err := a.client.CoreV1().Pods(p.Namespace).ProxyGet("http", p.Name, e.Port, e.Path, nil).DoRaw(ctx)
	if err != nil {
		a.Missing("metrics/%s.txt: %s", name, sentence(err))
		return
	}
	a.Add("metrics/"+name+".txt", text)
}
