// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gpu-dra-driver/test/cluster/internal/recipe"
)

// buffer is an io.Writer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func program(source string) recipe.Component {
	return recipe.Component{
		Name: "tiny", Version: "v1", Binary: "tiny", Packages: []string{"."},
		GoMod:   "module onenode.invalid/tiny\n\ngo 1.26.0\n",
		Sources: map[string]string{"main.go": source},
	}
}

func TestBuild_SeveralBuilders_BuildOnce(t *testing.T) {
	var progress buffer
	c := Cache{Dir: t.TempDir(), Progress: &progress}
	component := program("package main\n\nfunc main() {}\n")
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			bins, err := c.Build(t.Context(), []recipe.Component{component})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(filepath.Join(bins[0], "tiny")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := strings.Count(progress.b.String(), ": done,"); n != 1 {
		t.Errorf("built %d times:\n%s", n, progress.b.String())
	}
}

func TestBuild_Fails_NoEntryAndCompilerErrorShown(t *testing.T) {
	c := Cache{Dir: t.TempDir(), Progress: &buffer{}}
	component := program("package main\n\nfunc main() { undefinedThing() }\n")
	_, err := c.Build(t.Context(), []recipe.Component{component})
	if err == nil || !strings.Contains(err.Error(), "undefinedThing") {
		t.Errorf("got %v", err)
	}
	if _, ok := c.Bin(component); ok {
		t.Error("a failed build has an entry")
	}
	left, err := filepath.Glob(filepath.Join(c.Dir, ".building-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestBuild_EarlierBuilderKilled_DirectoryReplaced(t *testing.T) {
	c := Cache{Dir: t.TempDir(), Progress: &buffer{}}
	component := program("package main\n\nfunc main() {}\n")
	stale := filepath.Join(c.Dir, ".building-"+component.Key(), "src")
	if err := os.MkdirAll(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stale, "broken.go"), []byte("not Go"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Build(t.Context(), []recipe.Component{component}); err != nil {
		t.Error(err)
	}
}
