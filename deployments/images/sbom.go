// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// unknown is SPDX's word for a fact that the list does not assert.
const unknown = "NOASSERTION"

// sbom lists an image's files and parts as SPDX 2.3 in JSON. The image's digest distinguishes it from other lists. It
// has no time, so that equal images have equal lists.
func sbom(im v1.Image, name, version string, parts []part, files []entry) ([]byte, error) {
	digest, err := im.Digest()
	if err != nil {
		return nil, err
	}
	config, err := im.ConfigFile()
	if err != nil {
		return nil, err
	}
	whole := newPackage("Image", part{
		name: name, version: version, license: unknown,
		purl: fmt.Sprintf("pkg:oci/%s@%s?arch=%s", path.Base(name), url.QueryEscape(digest.String()), config.Architecture),
	})
	whole.PrimaryPackagePurpose = "CONTAINER"
	whole.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: digest.Hex}}
	doc := spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name,
		DocumentNamespace: "https://spdx.org/spdxdocs/" + name + "-" + digest.Hex,
		CreationInfo: &spdx.CreationInfo{
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "gpu-dra-driver-images"}},
			Created:  "1970-01-01T00:00:00Z",
		},
		Packages: []*spdx.Package{whole},
	}
	relate := func(from, to common.ElementID, as string) {
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.DocElementID{ElementRefID: from}, RefB: common.DocElementID{ElementRefID: to}, Relationship: as,
		})
	}
	relate("DOCUMENT", "Image", common.TypeRelationshipDescribe)
	for i, one := range parts {
		p := newPackage(fmt.Sprintf("Package-%d", i), one)
		doc.Packages = append(doc.Packages, p)
		relate("Image", p.PackageSPDXIdentifier, common.TypeRelationshipContains)
	}
	for i, f := range files {
		if strings.HasSuffix(f.name, "/") {
			continue
		}
		data := f.data
		if f.source != "" {
			if data, err = os.ReadFile(f.source); err != nil {
				return nil, err
			}
		}
		file := &spdx.File{
			FileName: "/" + f.name, FileSPDXIdentifier: common.ElementID(fmt.Sprintf("File-%d", i)), FileCopyrightText: unknown,
			Checksums: []common.Checksum{
				{Algorithm: common.SHA1, Value: fmt.Sprintf("%x", sha1.Sum(data))}, // the format demands it
				{Algorithm: common.SHA256, Value: fmt.Sprintf("%x", sha256.Sum256(data))},
			},
		}
		doc.Files = append(doc.Files, file)
		relate("Image", file.FileSPDXIdentifier, common.TypeRelationshipContains)
	}
	list, err := json.MarshalIndent(&doc, "", "  ")
	return append(list, '\n'), err
}

func newPackage(id string, p part) *spdx.Package {
	described := &spdx.Package{
		PackageSPDXIdentifier: common.ElementID(id), PackageName: p.name, PackageVersion: p.version,
		PackageDownloadLocation: unknown, PackageCopyrightText: unknown,
		PackageLicenseConcluded: unknown, PackageLicenseDeclared: cmp.Or(p.license, unknown),
		PackageExternalReferences: []*spdx.PackageExternalReference{
			{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: p.purl},
		},
	}
	var texts []string
	for _, text := range p.texts {
		texts = append(texts, "/"+text.name)
	}
	if slices.Sort(texts); len(texts) > 0 {
		described.PackageLicenseComments = "The texts are in the image: " + strings.Join(texts, ", ")
	}
	return described
}
