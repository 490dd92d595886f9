// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// SumsFile is the file beside the pictures with the checksums of the dashboards that they show.
const SumsFile = "dashboards.sha256"

// Sums returns the checksums of the dashboards in a directory, as sha256sum prints them.
func Sums(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%x  %s\n", sha256.Sum256(data), filepath.Base(file))
	}
	return out.String(), nil
}
