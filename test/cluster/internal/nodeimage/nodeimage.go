// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodeimage makes the image of a kind node without a registry: Debian's packages by mmdebstrap, all other
// programs from Go modules. It follows images/base and `kind build node-image` of kind's module.
//
// It differs from kind's own image. The CNI plugin is a static configuration for one node, because kindnetd is in no
// module. There is no provisioner of volumes. CoreDNS has the plugins of kubeadm's Corefile only.
package nodeimage

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"

	"gpu-dra-driver/test/cluster/internal/cache"
	"gpu-dra-driver/test/cluster/internal/image"
	"gpu-dra-driver/test/cluster/internal/recipe"
)

// suite is the Debian release of the node. Newer ones have a systemd that refuses cgroup v1.
const suite = "bookworm"

// packages lists the packages of kind's Dockerfile, without file systems that no test mounts.
const packages = "systemd,systemd-sysv,conntrack,iptables,nftables,iproute2,ethtool,mount,kmod,libseccomp2,jq,procps,ca-certificates"

// XtablesCommand is a command of the program that uses this package. mmdebstrap runs it: XtablesCommand ROOT OUT
// REFERENCE KUBE-PROXY. See WriteKubeProxy.
const XtablesCommand = "__kube-proxy"

//go:embed node.sh
var script string

// runc is the script that runs runc on the node.
//
//go:embed runc.sh
var runc string

// Image is a node image.
type Image struct {
	// Archive is the root file system as a compressed tar file, see Open.
	Archive string
	// Reference is the image's name.
	Reference string
	// Programs has the path of each built program by its name.
	Programs map[string]string
}

// Dockerfile makes the image of the root file system, imported as RootReference. docker import takes no stop signal.
const (
	RootReference = "node-root"
	Dockerfile    = "FROM " + RootReference + `
ENV container=docker
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
`
)

// Build builds the missing programs and the image of a node of the Kubernetes version into the cache. On a machine
// without CAP_SYS_RESOURCE, containers on the node keep their parent's score for the kernel's OOM killer.
func Build(ctx context.Context, c cache.Cache, version string) (Image, error) {
	began := time.Now()
	img := Image{Reference: "kindest/node:" + version, Programs: map[string]string{}}
	components, err := c.Components(ctx, version)
	if err != nil {
		return img, err
	}
	more, err := c.Kind(ctx, version)
	if err != nil {
		return img, err
	}
	components = append(components, more...)
	if err := img.build(ctx, c, components); err != nil {
		return img, err
	}
	out, err := exec.CommandContext(ctx, img.Programs["kubeadm"], "config", "images", "list", "--kubernetes-version", version).Output()
	if err != nil {
		return img, fmt.Errorf("list kubeadm's images: %w", err)
	}
	references := strings.Fields(string(out))
	last, err := recipe.KindImages(references)
	if err != nil {
		return img, err
	}
	if err := img.build(ctx, c, last); err != nil {
		return img, err
	}
	h := sha256.New()
	for _, component := range append(components, last...) {
		fmt.Fprintln(h, component.Key())
	}
	fmt.Fprintln(h, edition, script, runc, suite, packages, network, storage, SysResource())
	key := fmt.Sprintf("kind-node-%s-%s", version, hex.EncodeToString(h.Sum(nil))[:8])
	dir, err := c.Entry(ctx, key, "[node image] "+img.Reference, began, func(dir string) error {
		return img.assemble(ctx, c, dir, version, references)
	})
	img.Archive = filepath.Join(dir, "bin", archive)
	return img, err
}

// Open reads the root file system as a tar stream.
func Open(archive string) (io.ReadCloser, error) {
	file, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	d, err := zstd.NewReader(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return stream{d.IOReadCloser(), file}, nil
}

type stream struct {
	io.ReadCloser
	file *os.File
}

func (s stream) Close() error { return errors.Join(s.ReadCloser.Close(), s.file.Close()) }

// edition counts changes of this package that change the image.
const edition = 2

const archive = "node.tar.zst"

func (img Image) build(ctx context.Context, c cache.Cache, components []recipe.Component) error {
	bins, err := c.Build(ctx, components)
	if err != nil {
		return err
	}
	for i, component := range components {
		for _, name := range component.Binaries() {
			// Later ones are for the node: runc with seccomp, kubeadm's etcd.
			img.Programs[name] = filepath.Join(bins[i], name)
		}
	}
	return nil
}

const (
	network = `{"cniVersion": "1.0.0", "name": "node", "plugins": [
  {"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state",
    "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`
	// kind applies these manifests to each cluster and fails without them.
	cniManifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: node-cni, namespace: kube-system}\n"
	storage     = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: standard}\nprovisioner: kubernetes.io/no-provisioner\n"
)

// assemble makes the root file system in dir/bin.
func (img Image) assemble(ctx context.Context, c cache.Cache, dir, version string, references []string) error {
	overlay, images, bin := filepath.Join(dir, "overlay"), filepath.Join(dir, "images"), filepath.Join(dir, "bin")
	for _, d := range []string{images, bin, filepath.Join(dir, "tmp")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := img.overlay(ctx, overlay, version, references); err != nil {
		return err
	}
	if err := img.archives(images, references); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	setup := filepath.Join(dir, "node.sh")
	if err := os.WriteFile(setup, []byte(script), 0o755); err != nil {
		return err
	}
	proxy := slices.IndexFunc(references, func(r string) bool { return strings.Contains(r, "/kube-proxy:") })
	if proxy < 0 {
		return fmt.Errorf("kubeadm names no image kube-proxy: %v", references)
	}
	// In namespaces of its own, so that the end of its first process ends all others and their mounts.
	file, err := os.Create(filepath.Join(bin, archive))
	if err != nil {
		return err
	}
	defer file.Close()
	packed, err := zstd.NewWriter(file, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", `mount -t proc proc /proc && mmdebstrap "$@"; exit $?`, "mmdebstrap",
		"--quiet", "--mode=root", "--variant=minbase", "--include="+packages,
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--customize-hook="+setup+` "$1"`, "--format=tar", suite, "-")
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Join(dir, "tmp"), "OVERLAY="+overlay, "IMAGES="+images,
		"PROGRAM="+self+" "+XtablesCommand, "KUBE_PROXY="+img.Programs["kube-proxy"], "KUBE_PROXY_IMAGE="+references[proxy])
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = packed, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("make the node's root file system with mmdebstrap: %w\n%s", err, out.String())
	}
	if err := packed.Close(); err != nil {
		return err
	}
	for _, d := range []string{overlay, images, filepath.Join(dir, "tmp")} {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	return nil
}

// overlay writes the files of the node that no Debian package has.
func (img Image) overlay(ctx context.Context, dir, version string, references []string) error {
	files, err := kindFiles(ctx)
	if err != nil {
		return err
	}
	for _, sub := range []string{"etc", "kind", "usr"} {
		if err := os.CopyFS(filepath.Join(dir, sub), os.DirFS(filepath.Join(files, sub))); err != nil {
			return err
		}
	}
	for _, d := range []string{"etc/kubernetes/manifests", "etc/cni/net.d", "kind/manifests", "opt/cni/bin", "usr/bin", "usr/local/sbin"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	config := filepath.Join(dir, "etc/containerd/config.toml")
	b, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	pause := slices.IndexFunc(references, func(r string) bool { return strings.Contains(r, "/pause:") })
	if pause < 0 {
		return fmt.Errorf("kubeadm names no image pause: %v", references)
	}
	lines := strings.Split(string(b), "\n")
	for i, line := range lines {
		switch {
		case strings.HasPrefix(line, "  sandbox_image = "):
			lines[i] = fmt.Sprintf("  sandbox_image = %q", references[pause])
		case strings.HasPrefix(line, "  restrict_oom_score_adj = "):
			lines[i] = fmt.Sprintf("  restrict_oom_score_adj = %v", !SysResource())
		}
	}
	for name, text := range map[string]string{
		"etc/containerd/config.toml":          strings.Join(lines, "\n"),
		"etc/cni/net.d/10-node.conflist":      network,
		"kind/version":                        version,
		"kind/manifests/default-cni.yaml":     cniManifest,
		"kind/manifests/default-storage.yaml": storage,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	program, err := os.ReadFile(img.Programs["runc"])
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"runc": []byte(runc), "runc.real": program} {
		if err := os.WriteFile(filepath.Join(dir, "usr/local/sbin", name), content, 0o755); err != nil {
			return err
		}
	}
	for target, names := range map[string][]string{
		"usr/local/bin": {"containerd", "containerd-shim-runc-v2", "ctr", "crictl"},
		"usr/bin":       {"kubelet", "kubectl", "kubeadm"},
		"opt/cni/bin":   {"ptp", "portmap", "host-local", "loopback"},
	} {
		for _, name := range names {
			b, err := os.ReadFile(img.Programs[name])
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, target, name), b, 0o755); err != nil {
				return err
			}
		}
	}
	// Files of a module have lost their executable bits, and the module cache's directories are read-only.
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		switch filepath.Base(filepath.Dir(path)) {
		case "bin", "sbin":
			mode = 0o755
		}
		if d.IsDir() {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	})
}

// kindFiles is the directory of the files of a node in kind's module.
func kindFiles(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", recipe.KindModule+"@"+recipe.KindVersion)
	cmd.Dir = os.TempDir()
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &module); err == nil {
		err = jsonErr
	}
	if err != nil || module.Dir == "" {
		return "", fmt.Errorf("download %s %s from the Go proxy: %w %s", recipe.KindModule, recipe.KindVersion, err, module.Error)
	}
	return filepath.Join(module.Dir, "images", "base", "files"), nil
}

// archives writes the images of the control plane but kube-proxy's, which needs files of the node.
func (img Image) archives(dir string, references []string) error {
	for _, reference := range references {
		name, _, _ := strings.Cut(filepath.Base(reference), ":")
		program, entrypoint := img.Programs[name], ""
		file := image.File{Name: "usr/local/bin/" + name, Source: program}
		switch name {
		case "kube-proxy":
			continue
		case "coredns", "pause":
			entrypoint, file.Name = "/"+name, name
		}
		if program == "" {
			return fmt.Errorf("kubeadm needs the image %s, which no recipe builds", reference)
		}
		if err := image.WriteFiles(filepath.Join(dir, name+".tar"), reference, entrypoint, file); err != nil {
			return fmt.Errorf("write the image %s: %w", reference, err)
		}
	}
	return nil
}

// WriteKubeProxy writes the image of kube-proxy: its program, and iptables with its libraries from the root file system.
func WriteKubeProxy(root, out, reference, program string) error {
	const xtables = "usr/sbin/xtables-nft-multi"
	files := []image.File{{Name: "usr/local/bin/kube-proxy", Source: program}, {Name: xtables, Source: filepath.Join(root, xtables)}}
	for _, v := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			files = append(files, image.File{Name: "usr/sbin/" + v + verb, Link: "/" + xtables})
		}
	}
	extensions, err := filepath.Glob(filepath.Join(root, "usr/lib/*/xtables/*.so"))
	if err != nil || len(extensions) == 0 {
		return fmt.Errorf("no extensions of iptables in %s: %w", root, err)
	}
	for _, e := range extensions {
		files = append(files, image.File{Name: strings.TrimPrefix(e, root+"/"), Source: e})
	}
	args := []string{root, "ldd"}
	for _, f := range files[1:] {
		if f.Link == "" {
			args = append(args, "/"+f.Name)
		}
	}
	listed, err := exec.Command("chroot", args...).Output()
	if err != nil {
		return fmt.Errorf("list the libraries of iptables: %w", err)
	}
	for _, library := range libraries(string(listed)) {
		files = append(files, image.File{Name: library[1:], Source: filepath.Join(root, library)})
	}
	return image.WriteFiles(out, reference, "", files...)
}

// libraries reads the paths in ldd's output for several files.
func libraries(listed string) []string {
	var out []string
	for line := range strings.Lines(listed) {
		if !strings.HasPrefix(line, "\t") {
			continue // the file itself
		}
		for _, word := range strings.Fields(line) {
			if strings.HasPrefix(word, "/") {
				out = append(out, word)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// SysResource reports whether this machine can give away CAP_SYS_RESOURCE, as dockerd does for privileged containers.
func SysResource() bool {
	b, err := os.ReadFile("/proc/self/status")
	return err != nil || hasSysResource(string(b))
}

// hasSysResource reads the bounding set of a /proc/PID/status. A status without one has no limit.
func hasSysResource(status string) bool {
	const bit = 24
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			var set uint64
			if _, err := fmt.Sscanf(value, "%x", &set); err == nil {
				return set&(1<<bit) != 0
			}
		}
	}
	return true
}
