// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvmltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"gpu-dra-driver/internal/nvml"
)

// undocumented are codes that drivers return although nvml.h does not list them for a function.
var undocumented = []nvml.Code{
	nvml.NoPermission, nvml.Timeout, nvml.ResetRequired, 25 /* ARGUMENT_VERSION_MISMATCH */, nvml.Unknown,
}

// Codes returns the error codes that nvml.h documents for a function, and those that any function can return.
func Codes(t testing.TB, query string) []nvml.Code {
	t.Helper()
	documented, err := header()
	if err != nil {
		t.Fatal(err)
	}
	codes, ok := documented[query]
	if !ok {
		t.Fatalf("nvml.h has no function %s", query)
	}
	codes = append(slices.Clone(codes), undocumented...)
	slices.Sort(codes)
	return slices.Compact(codes)
}

// Documents reports whether nvml.h has a comment with the codes of a function.
func Documents(query string) bool {
	documented, err := header()
	_, ok := documented[query]
	return err == nil && ok
}

var (
	codeForm     = regexp.MustCompile(`(?m)^\s*(NVML_ERROR_\w+)\s*= (\d+),?`)
	functionForm = regexp.MustCompile(
		`(?s)/\*\*(.*?)\*/\s*(?:#\S[^\n]*\s*)*(?:(?:DEPRECATED\([\d.]+\)\s*)?nvmlReturn_t DECLDIR (nvml\w+)\s*\()?`)
	referredForm = regexp.MustCompile(`\\ref (NVML_ERROR_\w+)`)
)

// header reads the codes of each function from the comments of go-nvml's nvml.h.
var header = sync.OnceValues(func() (map[string][]nvml.Code, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg/nvml/nvml.h"))
	if err != nil {
		return nil, err
	}
	codes := map[string]nvml.Code{}
	for _, m := range codeForm.FindAllStringSubmatch(string(text), -1) {
		n, _ := strconv.Atoi(m[2])
		codes[m[1]] = nvml.Code(n)
	}
	out := map[string][]nvml.Code{}
	for _, m := range functionForm.FindAllStringSubmatch(string(text), -1) {
		if m[2] == "" {
			continue
		}
		_, returns, _ := strings.Cut(m[1], "@return")
		out[m[2]] = nil
		for _, r := range referredForm.FindAllStringSubmatch(returns, -1) {
			out[m[2]] = append(out[m[2]], codes[r[1]])
		}
	}
	return out, nil
})
