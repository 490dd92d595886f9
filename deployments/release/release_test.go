// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	cosign "github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/deployments/sign"
)

const version = "1.2.3"

const changelog = "# Changelog\n\n## Unreleased\n\n### Fixed\n\n- Later.\n\n## 1.2.3 - 2026-12-01\n\n### Added\n\nNodes\n\n" +
	"- One thing\n  in two lines.\n- Another.\n\n### Fixed\n\n- A fault.\n\n## 1.2.2\n\n- Earlier.\n"

// workplace is a small repository with the chart, and what the builds of a version leave in dist.
type workplace struct{ root, dist, key string }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func write(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.WriteFile(file, []byte(text), mode))
}

func newWorkplace(t *testing.T, architectures ...string) workplace {
	t.Helper()
	w := workplace{root: t.TempDir(), dist: t.TempDir(), key: filepath.Join(t.TempDir(), "key")}
	tool, err := filepath.Abs("../../hack/tool.sh")
	must(t, err)
	for _, name := range []string{driverChart, simulatorChart} {
		must(t, os.CopyFS(filepath.Join(w.root, "deployments/helm", name), os.DirFS("../helm/"+name)))
	}
	write(t, filepath.Join(w.root, "hack/tool.sh"), "#!/bin/sh\nexec '"+tool+"' \"$@\"\n", 0o755)
	write(t, filepath.Join(w.root, "CHANGELOG.md"), changelog, 0o644)
	write(t, filepath.Join(w.root, "go.sum"), "sums\n", 0o644)
	write(t, filepath.Join(w.root, "deployments/go.sum"), "other sums\n", 0o644)
	command(t, "git", "-C", w.root, "init", "-q")
	command(t, "git", "-C", w.root, "add", "-A")
	w.commit(t)
	w.build(t, version, architectures...)
	return w
}

func (w workplace) commit(t *testing.T) {
	t.Helper()
	command(t, "git", "-C", w.root, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qam", "change")
}

// build leaves small images, SBOMs and archives of a version in dist.
func (w workplace) build(t *testing.T, version string, architectures ...string) {
	t.Helper()
	digests := map[string]string{}
	for image, values := range map[string]struct{ chart, format string }{
		"dra-kubelet-plugin": {driverChart, "image: {digest: %q}\n"}, "dra-controller": {driverChart, "controller: {image: {digest: %q}}\n"},
		"mps-supervisor": {driverChart, "mps: {image: {digest: %q}}\n"}, "gpu-simulator": {simulatorChart, "image: {digest: %q}\n"},
	} {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, arch := range architectures {
			one, err := random.Image(100, 1)
			must(t, err)
			config, err := one.ConfigFile()
			must(t, err)
			config.OS, config.Architecture = "linux", arch
			one, err = mutate.ConfigFile(one, config)
			must(t, err)
			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add: one, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
			})
			write(t, filepath.Join(w.dist, image+"-"+version+"-"+arch+".spdx.json"), "{\"list\": \""+image+" "+arch+"\"}\n", 0o644)
		}
		dir := filepath.Join(w.dist, image+"-"+version)
		must(t, os.RemoveAll(dir))
		_, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index}))
		must(t, err)
		digest, err := index.Digest()
		must(t, err)
		digests[values.chart] += fmt.Sprintf(values.format, digest)
		write(t, filepath.Join(w.dist, image+"-"+version+".tar"), image, 0o644)
	}
	for chart, text := range digests {
		write(t, filepath.Join(w.dist, "digests-"+chart+".yaml"), text, 0o644)
	}
	write(t, filepath.Join(w.dist, "kubectl/gpu.yaml"), "kind: Plugin\nspec:\n  version: v"+version+"\n", 0o644)
	write(t, filepath.Join(w.dist, "kubectl/kubectl-gpu-"+version+"-linux-amd64.tar.gz"), "archive", 0o644)
}

// newKey makes the key that signs, and returns its verifier.
func (w workplace) newKey(t *testing.T) cosign.Verifier {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	write(t, w.key, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})), 0o600)
	verifier, err := cosign.LoadVerifier(&key.PublicKey, crypto.SHA256)
	must(t, err)
	return verifier
}

func (w workplace) release(t *testing.T, version string, args ...string) error {
	t.Helper()
	args = append([]string{"--root", w.root, "--dist", w.dist, "--version", version}, args...)
	return run(t.Context(), args, io.Discard, io.Discard)
}

func (w workplace) file(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(w.dist, "release-"+version, name))
	must(t, err)
	return data
}

// newRegistry starts a registry on this machine, and returns its address.
func newRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/team"
}

func reference(t *testing.T, text string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(text)
	must(t, err)
	return ref
}

// blobs returns the files of an artifact.
func blobs(t *testing.T, ref name.Reference) []string {
	t.Helper()
	im, err := remote.Image(ref)
	must(t, err)
	layers, err := im.Layers()
	must(t, err)
	var list []string
	for _, layer := range layers {
		r, err := layer.Compressed()
		must(t, err)
		data, err := io.ReadAll(r)
		must(t, err)
		list = append(list, string(data))
	}
	return list
}

// referrers returns the files about a digest, by kind.
func referrers(t *testing.T, repository string, digest v1.Hash) map[string]string {
	t.Helper()
	at, err := name.NewDigest(repository + "@" + digest.String())
	must(t, err)
	index, err := remote.Referrers(at)
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	found := map[string]string{}
	for _, m := range manifest.Manifests {
		// This registry lists another type than the manifest has.
		ref := reference(t, repository+"@"+m.Digest.String())
		im, err := remote.Image(ref)
		must(t, err)
		own, err := im.Manifest()
		must(t, err)
		found[own.ArtifactType] += blobs(t, ref)[0]
	}
	return found
}

// TestRelease_LocalRegistry_HasAll releases into a registry, and reads all from there.
func TestRelease_LocalRegistry_HasAll(t *testing.T) {
	w := newWorkplace(t, "amd64", "arm64")
	verifier, at := w.newKey(t), newRegistry(t)
	must(t, w.release(t, version, "--registry", at, "--key", w.key, "--home", "https://home.example.com", "--source", "https://source.example.com"))
	statement := w.file(t, "provenance.intoto.json")

	// Helm pulls the charts, which name the images in the registry.
	dir := t.TempDir()
	helm := filepath.Join(w.root, "hack/tool.sh")
	manifests, digests := "", map[string]v1.Hash{}
	for _, name := range []string{driverChart, simulatorChart} {
		chart := "oci://" + at + "/charts/" + name
		command(t, helm, "helm", "pull", chart, "--version", version, "--plain-http", "--destination", dir)
		pulled, err := os.ReadFile(filepath.Join(dir, name+"-"+version+".tgz"))
		must(t, err)
		if !bytes.Equal(pulled, w.file(t, name+"-"+version+".tgz")) {
			t.Errorf("the chart %s of the registry differs from the file", name)
		}
		manifests += command(t, helm, "helm", "template", "x", chart, "--version", version, "--plain-http")
		head, err := remote.Head(reference(t, at+"/charts/"+name+":"+version))
		must(t, err)
		digests["charts/"+name] = head.Digest
	}
	for _, im := range []string{"dra-kubelet-plugin", "dra-controller", "mps-supervisor", "gpu-simulator"} {
		repository := "gpu-dra-driver/" + im
		index, err := remote.Index(reference(t, at+"/"+repository+":"+version))
		must(t, err)
		must(t, validate.Index(index))
		digest, err := index.Digest()
		must(t, err)
		digests[repository] = digest
		if want := "image: " + at + "/" + repository + "@" + digest.String(); !strings.Contains(strings.ReplaceAll(manifests, "\"", ""), want) {
			t.Errorf("the chart has no %s", want)
		}
		list, err := index.IndexManifest()
		must(t, err)
		var platforms []string
		for _, m := range list.Manifests {
			platforms = append(platforms, m.Platform.String())
			want := map[string]string{sbomType: "{\"list\": \"" + im + " " + m.Platform.Architecture + "\"}\n"}
			if diff := cmp.Diff(want, referrers(t, at+"/"+repository, m.Digest)); diff != "" {
				t.Errorf("files about %s for %s: %s", im, m.Platform, diff)
			}
		}
		if slices.Sort(platforms); !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
			t.Errorf("%s is for %v", im, platforms)
		}
	}
	for repository, digest := range digests {
		if diff := cmp.Diff(map[string]string{statementType: string(statement)}, referrers(t, at+"/"+repository, digest)); diff != "" {
			t.Errorf("files about %s: %s", repository, diff)
		}
		payload := blobs(t, reference(t, at+"/"+repository+":"+sign.SignatureTag(digest)))[0]
		signature, err := remote.Image(reference(t, at+"/"+repository+":"+sign.SignatureTag(digest)))
		must(t, err)
		manifest, err := signature.Manifest()
		must(t, err)
		raw, err := base64.StdEncoding.DecodeString(manifest.Layers[0].Annotations["dev.cosignproject.cosign/signature"])
		must(t, err)
		if err := verifier.VerifySignature(bytes.NewReader(raw), strings.NewReader(payload)); err != nil || !strings.Contains(payload, digest.String()) {
			t.Errorf("signature of %s: %s, %v", repository, payload, err)
		}
		envelope := blobs(t, reference(t, at+"/"+repository+":"+sign.AttestationTag(digest)))[0]
		if err := dsse.WrapVerifier(verifier).VerifySignature(strings.NewReader(envelope), nil); err != nil {
			t.Errorf("attestation of %s: %v", repository, err)
		}
	}
	checkProvenance(t, w, statement, digests, at)
	checkMetadata(t, w, dir, at)

	// A second run changes nothing. Another release of that version is refused before anything is pushed.
	must(t, w.release(t, version, "--registry", at, "--key", w.key, "--home", "https://home.example.com", "--source", "https://source.example.com"))
	w.build(t, version, "amd64", "arm64")
	if err := w.release(t, version, "--registry", at); err == nil || !strings.Contains(err.Error(), "does not change") {
		t.Errorf("another release of the version: %v", err)
	}
	for repository, digest := range digests {
		if head, err := remote.Head(reference(t, at+"/"+repository+":"+version)); err != nil || head.Digest != digest {
			t.Errorf("%s is %v now, %v", repository, head, err)
		}
	}
}

// checkProvenance reads the statement by the library of in-toto.
func checkProvenance(t *testing.T, w workplace, text []byte, digests map[string]v1.Hash, at string) {
	t.Helper()
	var statement intoto.Statement
	must(t, protojson.Unmarshal(text, &statement))
	must(t, statement.Validate())
	predicate, err := protojson.Marshal(statement.GetPredicate())
	must(t, err)
	var build provenance.Provenance
	must(t, protojson.Unmarshal(predicate, &build))
	must(t, build.Validate())
	subjects := map[string]string{}
	for _, one := range statement.GetSubject() {
		subjects[one.GetName()] = one.GetDigest()["sha256"]
	}
	for repository, digest := range digests {
		if subjects[at+"/"+repository] != digest.Hex {
			t.Errorf("the provenance has %s for %s, want %s", subjects[at+"/"+repository], repository, digest)
		}
	}
	for _, file := range []string{
		driverChart + "-" + version + ".tgz", simulatorChart + "-" + version + ".tgz", "digests-" + driverChart + ".yaml", "gpu.yaml", "kubectl-gpu-1.2.3-linux-amd64.tar.gz", "notes.md",
	} {
		if want := fmt.Sprintf("%x", sha256.Sum256(w.file(t, file))); subjects[file] != want {
			t.Errorf("the provenance has %q for %s, want %s", subjects[file], file, want)
		}
	}
	commit := strings.TrimSpace(command(t, "git", "-C", w.root, "rev-parse", "HEAD"))
	materials := map[string]string{}
	for _, one := range build.GetBuildDefinition().GetResolvedDependencies() {
		materials[one.GetName()] = one.GetDigest()["gitCommit"] + one.GetDigest()["sha256"] + fmt.Sprint(one.GetAnnotations().GetFields()["uncommittedChanges"].GetBoolValue())
	}
	want := map[string]string{
		"source": commit + "false", "go.sum": fmt.Sprintf("%xfalse", sha256.Sum256([]byte("sums\n"))),
		"deployments/go.sum": fmt.Sprintf("%xfalse", sha256.Sum256([]byte("other sums\n"))),
	}
	if diff := cmp.Diff(want, materials); diff != "" {
		t.Errorf("materials: %s", diff)
	}
}

// checkMetadata looks into the pulled chart.
func checkMetadata(t *testing.T, w workplace, dir, at string) {
	t.Helper()
	command(t, "tar", "-C", dir, "-xf", filepath.Join(dir, driverChart+"-"+version+".tgz"))
	var chart struct {
		Version, AppVersion, Home string
		Sources                   []string
		Annotations               map[string]string
	}
	text, err := os.ReadFile(filepath.Join(dir, driverChart, "Chart.yaml"))
	must(t, err)
	must(t, yaml.Unmarshal(text, &chart))
	if chart.Version != version || chart.AppVersion != version || chart.Home != "https://home.example.com" || !slices.Equal(chart.Sources, []string{"https://source.example.com"}) {
		t.Errorf("Chart.yaml = %+v", chart)
	}
	notes := chart.Annotations
	if notes["artifacthub.io/prerelease"] != "false" || notes["artifacthub.io/license"] != "Apache-2.0" {
		t.Errorf("annotations = %v", notes)
	}
	var listed []change
	must(t, yaml.Unmarshal([]byte(notes["artifacthub.io/changes"]), &listed))
	want := []change{{"added", "One thing in two lines."}, {"added", "Another."}, {"fixed", "A fault."}}
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("changes: %s", diff)
	}
	var images []struct {
		Name, Image string
		Platforms   []string
	}
	must(t, yaml.Unmarshal([]byte(notes["artifacthub.io/images"]), &images))
	if len(images) != 3 || !strings.HasPrefix(images[0].Image, at+"/gpu-dra-driver/dra-controller:1.2.3@sha256:") || len(images[0].Platforms) != 2 {
		t.Errorf("images = %+v", images)
	}
	values, err := os.ReadFile(filepath.Join(dir, driverChart, "values.yaml"))
	must(t, err)
	shipped, err := os.ReadFile(filepath.Join(w.root, "deployments/helm", driverChart, "values.yaml"))
	must(t, err)
	var changed []string
	was, is := strings.Split(string(shipped), "\n"), strings.Split(string(values), "\n")
	for i := range min(len(was), len(is)) {
		if was[i] != is[i] {
			key, _, _ := strings.Cut(strings.TrimSpace(is[i]), ":")
			changed = append(changed, key)
		}
	}
	if slices.Sort(changed); len(was) != len(is) || !slices.Equal(changed, []string{"digest", "digest", "digest", "registry"}) {
		t.Errorf("%d lines of values.yaml became %d, and these differ: %v", len(was), len(is), changed)
	}
}

// TestRelease_NoRegistry_FilesEqual makes the files twice, without a network.
func TestRelease_NoRegistry_FilesEqual(t *testing.T) {
	w := newWorkplace(t, "amd64")
	verifier := w.newKey(t)
	read := func() map[string]string {
		must(t, w.release(t, version, "--key", w.key))
		all := map[string]string{}
		files, err := os.ReadDir(filepath.Join(w.dist, "release-"+version))
		must(t, err)
		for _, f := range files {
			all[f.Name()] = string(w.file(t, f.Name()))
		}
		return all
	}
	first := read()
	if diff := cmp.Diff(first, read()); diff != "" {
		t.Errorf("the second run has other files: %s", diff)
	}
	var sums strings.Builder
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range first {
			if !strings.HasPrefix(name, "SHA256SUMS") && !yield(name) {
				return
			}
		}
	}) {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256([]byte(first[name])), name)
	}
	if diff := cmp.Diff(sums.String(), first["SHA256SUMS"]); diff != "" || len(first) != 19 {
		t.Errorf("%d files; checksums: %s", len(first), diff)
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(first["SHA256SUMS.sig"]))
	must(t, err)
	if err := verifier.VerifySignature(bytes.NewReader(raw), strings.NewReader(first["SHA256SUMS"])); err != nil {
		t.Error(err)
	}
	if err := dsse.WrapVerifier(verifier).VerifySignature(strings.NewReader(first["provenance.intoto.jsonl"]), nil); err != nil {
		t.Error(err)
	}
	if notes := first["notes.md"]; !strings.HasPrefix(notes, "### Added\n\nNodes\n\n- One thing\n") || strings.Contains(notes, "Later") ||
		strings.Contains(notes, "Earlier") || !strings.Contains(notes, "oci://REGISTRY/charts/"+driverChart) || !strings.Contains(notes, "oci://REGISTRY/charts/"+simulatorChart) {
		t.Errorf("notes:\n%s", notes)
	}
}

func TestRelease_NotToPublish_Refused(t *testing.T) {
	for _, c := range []struct {
		name, version, registry, want string
		change                        func(t *testing.T, w workplace)
	}{
		{"a version without changes", "1.2.4", "", "no changes under '## 1.2.4'", func(t *testing.T, w workplace) { w.build(t, "1.2.4", "amd64") }},
		{"no version", "", "", "--version", nil},
		{"build metadata", "1.2.3+a", "", "--version", nil},
		{"images of another version", "1.2.2", "", "make images-all", nil},
		{"images for one architecture", version, "registry.example.com/team", "linux/amd64 and linux/arm64", nil},
		{"changes that are not committed", version, "registry.example.com", "not committed", func(t *testing.T, w workplace) {
			write(t, filepath.Join(w.root, "CHANGELOG.md"), changelog+"\n", 0o644)
		}},
		{"a digest of another build", version, "", "build the images again", func(t *testing.T, w workplace) {
			digests, err := os.ReadFile(filepath.Join(w.dist, "digests-"+driverChart+".yaml"))
			must(t, err)
			w.build(t, version, "amd64")
			write(t, filepath.Join(w.dist, "digests-"+driverChart+".yaml"), string(digests), 0o644)
		}},
		{"no archives", version, "", "run make dist", func(t *testing.T, w workplace) {
			must(t, os.Remove(filepath.Join(w.dist, "kubectl/kubectl-gpu-1.2.3-linux-amd64.tar.gz")))
		}},
		{"a manifest of another version", version, "", "run make dist", func(t *testing.T, w workplace) {
			write(t, filepath.Join(w.dist, "kubectl/gpu.yaml"), "version: v1.2.2\n", 0o644)
		}},
		{"a chart without a place for the digest", version, "", "no empty value", func(t *testing.T, w workplace) {
			file := filepath.Join(w.root, "deployments/helm", driverChart, "values.yaml")
			text, err := os.ReadFile(file)
			must(t, err)
			write(t, file, strings.ReplaceAll(string(text), "digest: \"\"", "digest: \"sha256:0\""), 0o644)
		}},
		{"a name that is none", version, "localhost:5000/UPPER", "REGISTRY=localhost:5000/UPPER", nil},
		{"a registry that does not answer", version, "localhost:1", "cannot ask for localhost:1/", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorkplace(t, "amd64")
			if c.change != nil {
				c.change(t, w)
			}
			args := []string{}
			if c.registry != "" {
				args = append(args, "--registry", c.registry)
			}
			if err := w.release(t, c.version, args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestRelease_PushFails_ChartIsNotThere breaks the upload of an image. Without its images, the chart must not be there. This registry
// does not list referrers, so that they are at a tag (OCI 1.1).
func TestRelease_PushFails_ChartIsNotThere(t *testing.T) {
	w := newWorkplace(t, "amd64")
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	broken := "/v2/team/gpu-dra-driver/mps-supervisor/manifests/"
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if broken != "" && req.Method == http.MethodPut && strings.HasPrefix(req.URL.Path, broken) {
			http.Error(rw, "denied", http.StatusForbidden)
			return
		}
		inner.ServeHTTP(rw, req)
	}))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://") + "/team"
	if err := w.release(t, version, "--registry", at); err == nil || !strings.Contains(err.Error(), "mps-supervisor") {
		t.Errorf("error = %v", err)
	}
	chart := reference(t, at+"/charts/"+driverChart+":"+version)
	if _, err := remote.Head(chart); err == nil {
		t.Error("the chart is there without its images")
	}
	broken = ""
	must(t, w.release(t, version, "--registry", at))
	head, err := remote.Head(chart)
	must(t, err)
	if found := referrers(t, at+"/charts/"+driverChart, head.Digest); found[statementType] != string(w.file(t, "provenance.intoto.json")) {
		t.Errorf("files about the chart: %v", found)
	}
}

func TestRelease_Prerelease_TakesUnreleased(t *testing.T) {
	w := newWorkplace(t, "amd64")
	const candidate = "1.3.0-rc.1"
	w.build(t, candidate, "amd64")
	must(t, w.release(t, candidate))
	notes, err := os.ReadFile(filepath.Join(w.dist, "release-"+candidate, "notes.md"))
	if err != nil || !strings.Contains(string(notes), "Later.") {
		t.Errorf("notes = %s, %v", notes, err)
	}
	chart := command(t, "tar", "-xOf", filepath.Join(w.dist, "release-"+candidate, driverChart+"-"+candidate+".tgz"), driverChart+"/Chart.yaml")
	if !strings.Contains(chart, "artifacthub.io/prerelease: \"true\"") {
		t.Errorf("Chart.yaml = %s", chart)
	}
}

// TestRelease_UncommittedChanges_ProvenanceSaysSo is for releases that stay on this machine.
func TestRelease_UncommittedChanges_ProvenanceSaysSo(t *testing.T) {
	w := newWorkplace(t, "amd64")
	write(t, filepath.Join(w.root, "go.sum"), "changed\n", 0o644)
	must(t, w.release(t, version))
	var statement struct {
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Annotations map[string]bool }
			}
		}
	}
	must(t, json.Unmarshal(w.file(t, "provenance.intoto.json"), &statement))
	if source := statement.Predicate.BuildDefinition.ResolvedDependencies[0]; !source.Annotations["uncommittedChanges"] {
		t.Errorf("the source is %+v", source)
	}
}

func TestRelease_Notes_OfTheVersionAlone(t *testing.T) {
	w := workplace{root: t.TempDir()}
	write(t, filepath.Join(w.root, "CHANGELOG.md"), changelog, 0o644)
	for version, want := range map[string]string{
		"1.2.2": "- Earlier.\n", "1.2.3-rc.1": "### Fixed\n\n- Later.\n", "1.2.4": "",
	} {
		var out bytes.Buffer
		err := run(t.Context(), []string{"--root", w.root, "--version", version, "--notes"}, &out, io.Discard)
		if out.String() != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", version, out.String(), err)
		}
	}
}

func TestOnThisMachine_Registries_Recognised(t *testing.T) {
	for registry, want := range map[string]bool{
		"localhost:5000/team": true, "localhost": true, "127.0.0.1:5000": true, "[::1]:5000/a": true,
		"registry.example.com/localhost": false, "localhost.example.com:5000": false, "10.0.0.1:5000": false,
	} {
		if got := onThisMachine(registry); got != want {
			t.Errorf("%s: %t", registry, got)
		}
	}
}
