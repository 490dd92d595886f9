// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipe

import (
	"fmt"
	"path"
	"strings"
)

// Published is a file that the makers of a program publish with each release.
type Published struct {
	// URL is the file's address, Sums that of the file with its SHA-256 checksum: the checksum alone, or lines as sha256sum writes them.
	URL, Sums string
	// Programs are the paths of the programs in a `.tar.gz`, by name. Empty: the file is the program.
	Programs map[string]string
	// Program is the name of the program that the file is.
	Program string
}

// Published lists the files with the component's programs for Linux on an architecture (GOARCH), in the layout of the makers' release
// pages. It is empty for programs without a release.
func (c Component) Published(arch string) []Published {
	switch c.Module {
	case KubernetesModule:
		var files []Published
		for _, p := range c.Packages {
			name := path.Base(p)
			url := fmt.Sprintf("https://dl.k8s.io/release/%s/bin/linux/%s/%s", c.Version, arch, name)
			files = append(files, Published{URL: url, Sums: url + ".sha256", Program: name})
		}
		return files
	case "github.com/containerd/containerd/v2":
		url := release("containerd/containerd", c.Version) + fmt.Sprintf("containerd-%s-linux-%s.tar.gz", strings.TrimPrefix(c.Version, "v"), arch)
		return []Published{{URL: url, Sums: url + ".sha256sum", Programs: c.inDirectory("bin")}}
	case "github.com/opencontainers/runc":
		page := release("opencontainers/runc", c.Version)
		return []Published{{URL: page + "runc." + arch, Sums: page + "runc.sha256sum", Program: "runc"}}
	case "go.etcd.io/etcd/server/v3":
		page, name := release("etcd-io/etcd", c.Version), fmt.Sprintf("etcd-%s-linux-%s", c.Version, arch)
		return []Published{{URL: page + name + ".tar.gz", Sums: page + "SHA256SUMS", Programs: c.inDirectory(name)}}
	case "github.com/containernetworking/plugins":
		url := release("containernetworking/plugins", c.Version) + fmt.Sprintf("cni-plugins-linux-%s-%s.tgz", arch, c.Version)
		return []Published{{URL: url, Sums: url + ".sha256", Programs: c.inDirectory(".")}}
	}
	return nil
}

// release is the address of a release's files on GitHub, with a slash at the end.
func release(repository, version string) string {
	return "https://github.com/" + repository + "/releases/download/" + version + "/"
}

// inDirectory maps the component's programs to their paths in an archive.
func (c Component) inDirectory(dir string) map[string]string {
	programs := map[string]string{}
	for _, name := range c.Binaries() {
		programs[name] = path.Join(dir, name)
	}
	return programs
}
