// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"gpu-dra-driver/deployments/sign"
)

// driverChart and simulatorChart are the charts of a release.
const (
	driverChart    = "gpu-dra-driver"
	simulatorChart = "gpu-simulator"
)

// release is one version with its settings.
type release struct {
	root, dist                      string // of the repository, and of the built files
	version                         string // as in 1.2.3 or 1.2.3-rc.1
	registry, home, source, builder string
	key                             *ecdsa.PrivateKey // can be nil
	charts                          []chart
	progress                        io.Writer
}

// images returns the images of all charts.
func (r release) images() (list []image) {
	for _, c := range r.charts {
		list = append(list, c.images...)
	}
	return list
}

// reference returns a repository in the registry.
func (r release) reference(repository string) string { return r.registry + "/" + repository }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	r := release{progress: stderr}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&r.version, "version", "", "version of the release, such as 1.2.3 or 1.2.3-rc.1")
	flags.StringVar(&r.dist, "dist", "dist", "directory with the images and archives of that version; the release is written below it")
	flags.StringVar(&r.registry, "registry", "", "registry and path to push to, such as localhost:5000/team; without it nothing is pushed")
	flags.StringVar(&r.home, "home", "", "address of the project, for the chart")
	flags.StringVar(&r.source, "source", "", "address of the sources, for the chart and the provenance")
	flags.StringVar(&r.builder, "builder", "urn:gpu-dra-driver:local", "identifier of this builder, for the provenance")
	flags.StringVar(&r.root, "root", "", "root of the repository; found by the go command without it")
	notes := flags.Bool("notes", false, "print the changes of the version, and make nothing")
	keyFile := flags.String("key", "", "file with an ECDSA key on P-256 in PEM, which signs as cosign does")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || r.version == "" || strings.Contains(r.version, "+") {
		return fmt.Errorf("give --version as in 1.2.3 or 1.2.3-rc.1, without build metadata, and no other arguments")
	}
	r.registry = strings.Trim(r.registry, "/")
	var err error
	if *keyFile != "" {
		if r.key, err = sign.ReadKey(*keyFile); err != nil {
			return err
		}
	}
	if r.root == "" {
		dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "gpu-dra-driver").Output()
		if err != nil {
			return fmt.Errorf("cannot find the product's module; run from a checkout of this repository: %w", err)
		}
		r.root = strings.TrimSpace(string(dir))
	}
	if *notes {
		changed, err := r.changes()
		if err == nil {
			_, err = io.WriteString(stdout, changed)
		}
		return err
	}
	return r.make(ctx, stdout)
}

// changes returns the section of the version in the changelog.
func (r release) changes() (string, error) {
	text, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	return section(string(text), r.version)
}

// make writes the release, pushes it if there is a registry, and prints where it is.
func (r release) make(ctx context.Context, stdout io.Writer) error {
	changed, err := r.changes()
	if err != nil {
		return err
	}
	sources, err := readTree(ctx, r.root)
	if err != nil {
		return err
	}
	for _, name := range []string{driverChart, simulatorChart} {
		c, err := r.readChart(name)
		if err != nil {
			return err
		}
		r.charts = append(r.charts, c)
	}
	if err := r.check(sources); err != nil {
		return err
	}
	for i := range r.charts {
		if err := r.pack(ctx, &r.charts[i], changes(changed)); err != nil {
			return err
		}
	}
	files, err := r.files()
	if err != nil {
		return err
	}
	files["notes.md"] = []byte(changed + "\n" + r.artifacts() + r.local())
	statement, err := r.statement(sources, r.subjects(files))
	if err != nil {
		return err
	}
	files["provenance.intoto.json"] = statement
	out := filepath.Join(r.dist, "release-"+r.version)
	if err := r.write(out, files, statement); err != nil {
		return err
	}
	if r.registry != "" {
		if err := r.push(ctx, statement); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "%s has %s; %s", out, r.version, r.artifacts())
	return nil
}

// check refuses to publish images for one architecture, or of sources that no commit has.
func (r release) check(sources tree) error {
	if r.registry == "" || onThisMachine(r.registry) {
		return nil
	}
	if sources.dirty {
		return errors.New("the tree has changes that are not committed: commit them, so that the provenance names the sources")
	}
	for _, im := range r.images() {
		if got := im.platforms(); !slices.Equal(got, []string{"linux/amd64", "linux/arm64"}) {
			return fmt.Errorf("image %s is for %s: publish both linux/amd64 and linux/arm64, as make images-all builds them", im.name, strings.Join(got, ", "))
		}
	}
	return nil
}

// artifacts is the part of the notes that says where images and charts are.
func (r release) artifacts() string {
	var b strings.Builder
	b.WriteString("## Artifacts\n\n| artifact | digest |\n| --- | --- |\n")
	for _, im := range r.images() {
		fmt.Fprintf(&b, "| `%s:%s` | `%s` |\n", r.reference(im.repository), r.version, im.digest)
	}
	for _, c := range r.charts {
		fmt.Fprintf(&b, "| `oci://%s` %s | `%s` |\n", r.reference(c.repository()), r.version, c.digest)
	}
	text := b.String()
	if r.registry == "" {
		return strings.NewReplacer("oci:///", "oci://REGISTRY/", "`/", "`REGISTRY/").Replace(text)
	}
	plain := ""
	if onThisMachine(r.registry) {
		plain = " --plain-http"
	}
	return text + fmt.Sprintf("\n```sh\nhelm install %[1]s oci://%[2]s --version %[3]s%[4]s \\\n  --namespace %[1]s --create-namespace\n```\n",
		driverChart, r.reference(r.charts[0].repository()), r.version, plain)
}

// local is the part of the notes for a cluster that pulls nothing: images by their archives, charts by their files. The archives
// name no registry, and a loaded image has no digest by which a chart finds it.
func (r release) local() string {
	return strings.NewReplacer("VERSION", r.version, "ARCH", runtime.GOARCH).Replace(`
## Without a registry and without GPUs

In the directory of these files, on a kind cluster of Kubernetes 1.36 or newer:

` + "```sh" + `
tar -xzf kubectl-gpu-VERSION-linux-ARCH.tar.gz ./kubectl-gpu && export PATH=$PWD:$PATH
for archive in *-VERSION-ARCH.tar; do kind load image-archive "$archive"; done
helm install gpu-simulator gpu-simulator-VERSION.tgz --namespace gpu-simulator --create-namespace --wait \
  --set image.pullPolicy=Never,image.registry=,image.digest=
helm install gpu-dra-driver gpu-dra-driver-VERSION.tgz --namespace gpu-dra-driver --create-namespace --wait \
  --set image.pullPolicy=Never,image.registry=,image.digest=,controller.image.digest=,mps.image.digest= --set simulator.enabled=true
kubectl gpu ls
kubectl gpu run part --profile 1g.10gb --image gpu-dra-driver/gpu-simulator:VERSION --apply -- nvidia-smi -L
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/part --timeout=60s && kubectl logs part
` + "```" + `
`)
}

// sbom returns the file name of the SBOM of a platform's image.
func (im image) sbom(version string, m v1.Descriptor) string {
	return im.name + "-" + version + "-" + m.Platform.Architecture + ".spdx.json"
}

// files returns the files to publish, but for the notes, the provenance and the checksums.
func (r release) files() (map[string][]byte, error) {
	files := map[string][]byte{}
	add := func(to, from string) error {
		data, err := os.ReadFile(filepath.Join(r.dist, from))
		files[to] = data
		return err
	}
	errs := []error{add("gpu.yaml", "kubectl/gpu.yaml")}
	if !strings.Contains(string(files["gpu.yaml"]), "version: v"+r.version+"\n") {
		errs = append(errs, fmt.Errorf("%s/kubectl/gpu.yaml is not of %s; run make dist", r.dist, r.version))
	}
	for _, c := range r.charts {
		files[c.name+"-"+r.version+".tgz"] = c.archive
		errs = append(errs, add(c.digests(), c.digests()))
	}
	for _, im := range r.images() {
		architecture := runtime.GOARCH
		for _, m := range im.manifests {
			if len(im.manifests) == 1 {
				architecture = m.Platform.Architecture
			}
			file := im.sbom(r.version, m)
			errs = append(errs, add(file, file))
		}
		// docker load and kind take this one.
		file := im.name + "-" + r.version
		errs = append(errs, add(file+"-"+architecture+".tar", file+".tar"))
	}
	archives, err := filepath.Glob(filepath.Join(r.dist, "kubectl", "kubectl-gpu-"+r.version+"-*.tar.gz"))
	if err != nil || len(archives) == 0 {
		errs = append(errs, fmt.Errorf("no archives of kubectl gpu %s; run make dist: %w", r.version, cmp.Or(err, os.ErrNotExist)))
	}
	for _, archive := range archives {
		errs = append(errs, add(filepath.Base(archive), "kubectl/"+filepath.Base(archive)))
	}
	return files, errors.Join(errs...)
}

// subjects returns what the provenance is about: the artifacts of the registry and the files.
func (r release) subjects(files map[string][]byte) (list []subject) {
	add := func(repository string, digest v1.Hash) {
		list = append(list, subject{strings.TrimPrefix(r.reference(repository), "/"), digest.Hex})
	}
	for _, c := range r.charts {
		add(c.repository(), c.digest)
	}
	for _, im := range r.images() {
		add(im.repository, im.digest)
	}
	for name, data := range files {
		list = append(list, subject{name, fmt.Sprintf("%x", sha256.Sum256(data))})
	}
	slices.SortFunc(list, func(a, b subject) int { return strings.Compare(a.name, b.name) })
	return list
}

// write replaces the directory of the release. It adds the checksums, and signatures of checksums and provenance.
func (r release) write(out string, files map[string][]byte, statement []byte) error {
	if r.key != nil {
		signed, _, err := sign.Statement(r.key, statement, predicateType)
		if err != nil {
			return err
		}
		files["provenance.intoto.jsonl"] = signed
	}
	var sums strings.Builder
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(files[name]), name)
	}
	files["SHA256SUMS"] = []byte(sums.String())
	if r.key != nil {
		signature, err := sign.File(r.key, files["SHA256SUMS"])
		if err != nil {
			return err
		}
		files["SHA256SUMS.sig"] = []byte(signature + "\n")
	}
	if err := os.RemoveAll(out); err != nil {
		return fmt.Errorf("cannot remove an earlier release: %w", err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(out, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
