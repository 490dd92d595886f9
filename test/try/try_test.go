// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/test/demos"
)

var update = flag.Bool("update", false, "write the goldens again")

const standard = "hgx-h100"

func sourceTree(t *testing.T) (tree string, all []demos.Demo) {
	t.Helper()
	tree, err := demos.Tree()
	if err != nil {
		t.Fatal(err)
	}
	if all, err = demos.List(tree); err != nil {
		t.Fatal(err)
	}
	return tree, all
}

func playOn(t *testing.T, board string, d demos.Demo) result {
	t.Helper()
	tree, _ := sourceTree(t)
	r, err := play(t.Context(), tree, board, d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func demo(t *testing.T, name string) demos.Demo {
	t.Helper()
	_, all := sourceTree(t)
	for _, d := range all {
		if d.Name == name {
			return d
		}
	}
	t.Fatalf("no demo %s", name)
	return demos.Demo{}
}

// asItsHead says whether as many pods have their devices and wait as the demo's file says.
func asItsHead(r result) bool {
	return r.ready() == r.demo.Pods && len(r.pods)-r.ready() == r.demo.Pending
}

func TestPlay_EveryDemo_AllocatesAsItsHeadSays(t *testing.T) {
	_, all := sourceTree(t)
	for _, d := range all {
		r := playOn(t, standard, d)
		if !asItsHead(r) {
			t.Errorf("%s: %d of %d pods have their devices; the head says Pods: %d, Pending: %d\n%s",
				d.Name, r.ready(), len(r.pods), d.Pods, d.Pending, r.allocation())
		}
		text := r.format()
		for _, p := range r.pods {
			if p.waits == "" && (len(p.claims) == 0 || len(p.claims[0].prepared.plan.Devices) == 0 || len(p.claims[0].prepared.spec.Devices) == 0) {
				t.Errorf("%s: pod %s has no plan or no CDI spec", d.Name, p.name)
			}
		}
		want := []string{"== " + d.Name + ": " + d.Title, "Allocation\n"}
		if d.Pods > 0 {
			want = append(want, "Slices, the allocated devices\n", "Plan of ", "CDI spec of ")
		}
		if d.Pending > 0 {
			want = append(want, "waits: ")
		}
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: the output lacks %q:\n%s", d.Name, part, text)
			}
		}
	}
}

func TestPlay_ClaimTooLarge_DiffersFromHead(t *testing.T) {
	d := demo(t, "fraction-four")
	data, err := os.ReadFile(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	d.Path = filepath.Join(t.TempDir(), "fraction-four.yaml")
	if err := os.WriteFile(d.Path, bytes.Replace(data, []byte("39Gi"), []byte("81Gi"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	r := playOn(t, standard, d)
	if asItsHead(r) || !strings.Contains(r.allocation(), "waits: claim thirty-nine-gpu, request gpu: the board cannot") {
		t.Errorf("a share larger than a GPU is allocated:\n%s", r.allocation())
	}
}

// golden compares a text with a file of `testdata`.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: read the difference, then go -C test test ./try -update (-golden +now):\n%s", name, diff)
	}
}

func TestFormat_TwoDemos_MatchGoldens(t *testing.T) {
	for _, name := range []string{"fraction-refused", "mig-mixed"} {
		got := formatFull(standard, playOn(t, standard, demo(t, name)))
		got, _, _ = strings.Cut(got, "\n== Slices: ")
		golden(t, name, got)
	}
}

// TestRun_NoArguments_FitsTwoScreens has a line for each demo and one demo in full.
func TestRun_NoArguments_FitsTwoScreens(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), nil, &out, &out); err != nil {
		t.Fatal(err)
	}
	golden(t, "index", out.String())
	if n := strings.Count(out.String(), "\n"); n > 128 {
		t.Errorf("%d lines", n)
	}
}

func TestRun_SeveralBoards_ListsEachDemo(t *testing.T) {
	for _, board := range []string{standard, "a100-pcie-4", "rtx-pro-6000", "t4-1"} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{"-board", board}, &out, &out); err != nil {
			t.Fatalf("%s: %v", board, err)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("%s: %d columns: %s", board, n, line)
			}
		}
		_, all := sourceTree(t)
		for _, d := range all {
			if n := strings.Count(out.String(), "\n"+d.Name+" "); n != 1 {
				t.Errorf("%s: demo %s is shown %d times", board, d.Name, n)
			}
		}
	}
}

// TestFormat_EveryBoard_GroupHasNoMoreGPUsThanTheBoard counts the GPUs in the texts about groups.
func TestFormat_EveryBoard_GroupHasNoMoreGPUsThanTheBoard(t *testing.T) {
	tree, _ := sourceTree(t)
	groups := 0
	for _, name := range profiles.Names() {
		b, err := newBoard(t.Context(), tree, name, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range b.devices() {
			named, err := gpu.ParseName(d.Name)
			if err != nil || named.Kind != gpu.KindGroup {
				continue
			}
			groups++
			if _, text, ok := strings.Cut(counters(d), " of each of "); ok && text != fmt.Sprintf("%d GPUs", named.Size) {
				t.Errorf("%s: %s takes from %s", name, d.Name, counters(d))
			}
		}
	}
	if groups == 0 {
		t.Error("no board has a group")
	}
}

func TestRun_BoardWithoutDevice_NamesReason(t *testing.T) {
	for name, reason := range map[string]string{
		"mig-one":            "claim mig-one-gpu, request gpu: the board cannot satisfy it, even with no other pod",
		"by-model-class":     "there is no DeviceClass nvidia-h100-80gb-hbm3.gpu.nvidia.com",
		"eight-gpus":         "the board cannot satisfy it, even with no other pod",
		"deployment-of-8":    "other pods hold the devices that it needs",
		"plugin-node-labels": "the node's labels do not match the node selector nvidia.com/gpu.present=true",
	} {
		r := playOn(t, "t4-1", demo(t, name))
		if text := strings.Join(strings.Fields(r.allocation()), " "); !strings.Contains(text, "waits: ") || !strings.Contains(text, reason) {
			t.Errorf("%s: want %q:\n%s", name, reason, text)
		}
	}
}

func TestRun_WrongArguments_ReturnError(t *testing.T) {
	for _, args := range [][]string{{"no-such-demo"}, {"one-gpu", "mig-one"}, {"-board", "no-such-board"}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, &out, &out); err == nil || out.Len() > 0 {
			t.Errorf("%q: error %v, output %q", args, err, out.String())
		}
	}
}

func TestPlay_Interrupted_ReturnsError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tree, _ := sourceTree(t)
	if _, err := play(ctx, tree, standard, demo(t, "one-gpu")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestShort_LongAndShortValues_BlocksOnlyWhereNeeded(t *testing.T) {
	got := short(map[string]any{
		"a": map[string]any{"x": 1, "y": "195:0"},
		"b": []string{strings.Repeat("b", 60), strings.Repeat("c", 60)},
		"c": strings.Repeat("d", 200),
		"d": "true",
	})
	want := "  a: {x: 1, y: '195:0'}\n  b:\n    - " + strings.Repeat("b", 60) + "\n    - " + strings.Repeat("c", 60) + "\n  c: " +
		strings.Repeat("d", 50) + "… (200 characters)\n  d: \"true\"\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
