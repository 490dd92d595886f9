// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	licenseFile   = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright|notice|patents)`)
	commonLicense = regexp.MustCompile(`/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9])`)
)

// licenseDir returns the directory of a part's licence texts in the image.
func licenseDir(name, version string) string { return "licenses/" + name + "@" + version + "/" }

// moduleLicenses returns the licence texts of the modules in a binary, by module path. They are beside the packages
// that the binary uses, and in the directories above them.
func (b builder) moduleLicenses(ctx context.Context, p platform, bin binary) (map[string][]entry, error) {
	listed, err := b.goCommand(ctx, bin.dir, p.env(bin), "list", "-deps", buildTags, "-json=Dir,Module", bin.pkg)
	if err != nil {
		return nil, err
	}
	texts := map[string][]entry{}
	read := map[string]bool{}
	for packages := json.NewDecoder(strings.NewReader(listed)); ; {
		var pkg struct {
			Dir    string
			Module *struct{ Path, Version, Dir string }
		}
		if err := packages.Decode(&pkg); errors.Is(err, io.EOF) {
			return texts, nil
		} else if err != nil {
			return nil, fmt.Errorf("unreadable list of packages: %w", err)
		}
		m := pkg.Module
		if m == nil || m.Version == "" { // of Go's library, or of this repository
			continue
		}
		for dir := pkg.Dir; strings.HasPrefix(dir, m.Dir) && !read[dir]; dir = filepath.Dir(dir) {
			read[dir] = true
			to := licenseDir(m.Path, m.Version) + filepath.ToSlash(strings.TrimPrefix(dir, m.Dir))
			found, err := licensesIn(dir, to)
			if err != nil {
				return nil, err
			}
			texts[m.Path] = append(texts[m.Path], found...)
		}
	}
}

// licensesIn returns the licence texts of one directory as files of the image's directory to.
func licensesIn(dir, to string) ([]entry, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot look for licence texts: %w", err)
	}
	var texts []entry
	for _, f := range files {
		if !f.Type().IsRegular() || filepath.Ext(f.Name()) == ".go" || !licenseFile.MatchString(f.Name()) {
			continue
		}
		text, err := licenseText(filepath.Join(dir, f.Name()), to)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// licenseText returns a file of this machine as a file of the image's directory to.
func licenseText(file, to string) (entry, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return entry{}, fmt.Errorf("cannot read a licence text: %w", err)
	}
	return entry{name: strings.ReplaceAll(to+"/"+filepath.Base(file), "//", "/"), mode: 0o644, data: data}, nil
}

// debianLicenses returns the licence texts of a Debian package: its own file, and the common ones that it names.
func debianLicenses(name, to string) ([]entry, error) {
	text, err := licenseText("/usr/share/doc/"+name+"/copyright", to)
	if err != nil {
		return nil, err
	}
	texts := []entry{text}
	seen := map[string]bool{}
	for _, match := range commonLicense.FindAllStringSubmatch(string(text.data), -1) {
		if seen[match[1]] {
			continue
		}
		seen[match[1]] = true
		common, err := licenseText(match[0], to)
		if err != nil {
			return nil, err
		}
		texts = append(texts, common)
	}
	return texts, nil
}
