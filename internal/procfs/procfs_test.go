// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseMounts_LinesOfKernel_ReturnsMounts(t *testing.T) {
	long := "/" + strings.Repeat("x", 1<<17)
	got := parseMounts([]byte(strings.Join([]string{
		`22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw`,
		`23 22 0:52 ` + long + ` /long rw - overlay overlay rw,lowerdir=` + long,
		`24 22 254:1 /with\040space\134040 /a\011b\012c rw - ext4 /dev/vda1 rw`,
		`25 22 254:1 /state/file//deleted /file ro - ext4 /dev/vda1 rw`,
		`26 22 254:1 /bad\9escape\ /p rw - ext4 /dev/vda1 rw`,
		`27 22 0:4 net:[4026531840] /run/netns/a rw - nsfs nsfs rw`,
		`garbage`, ``,
		`28 22 254:1 /cut /c`,
	}, "\n")))
	want := []Mount{
		{"254:1", "/", "/"}, {"0:52", long, "/long"}, {"254:1", `/with space\040`, "/a\tb\nc"},
		{"254:1", "/state/file", "/file"}, {"254:1", `/bad\9escape\`, "/p"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestParseStart_StatFiles_ReturnsTicks(t *testing.T) {
	const rest = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20 21\n"
	for text, want := range map[string]uint64{
		"7 (name) S" + rest: 777, "7 (a) S 1 2 (b)) R" + rest: 777, "7 (name) Z" + rest: 0, "7 (name) S 1 2": 0, "": 0, "7 (name": 0,
	} {
		if got, ok := parseStart([]byte(text)); got != want || ok != (want != 0) {
			t.Errorf("%q: %v, %v", text, got, ok)
		}
	}
}

func TestMounts_OwnProcess_ContainRoot(t *testing.T) {
	pid := uint32(os.Getpid())
	mounts, err := Mounts("/proc", pid)
	if err != nil || !slices.ContainsFunc(mounts, func(m Mount) bool { return m.Point == "/" }) {
		t.Errorf("%v, %v", mounts, err)
	}
	first, err := Start("/proc", pid)
	if second, again := Start("/proc", pid); err != nil || again != nil || first != second || first == 0 {
		t.Errorf("%v and %v, %v and %v", first, second, err, again)
	}
}

func TestMounts_FilesOfProcess_BoundedAndErrors(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "7")
	if err := os.MkdirAll(filepath.Join(dir, "stat"), 0o755); err != nil {
		t.Fatal(err)
	}
	line := []byte("1 1 8:1 /a /b rw - ext4 x rw\n")
	if err := os.WriteFile(filepath.Join(dir, "mountinfo"), bytes.Repeat(line, 2*mountsLimit/len(line)), 0o644); err != nil {
		t.Fatal(err)
	}
	if mounts, err := Mounts(root, 7); err != nil || len(mounts) != mountsLimit/len(line) {
		t.Errorf("%d mounts, %v", len(mounts), err)
	}
	if _, err := Start(root, 7); err == nil || errors.Is(err, ErrEnded) {
		t.Errorf("a stat file that is unreadable: %v", err)
	}
	if _, err := Mounts(root, 8); !errors.Is(err, ErrEnded) {
		t.Errorf("no process: %v", err)
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add([]byte("36 35 98:0 /mnt\\0401 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n36 35 \\"))
	f.Add([]byte(strings.Repeat("1 ", 1<<12) + "\n\\1\\12\\777\n 1 2 3 /\\ /\\0 \n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, m := range parseMounts(data) {
			if !strings.HasPrefix(m.Point, "/") || len(m.Root)+len(m.Point)+len(m.Filesystem) > len(data) {
				t.Errorf("%+v", m)
			}
		}
		parseStart(data)
	})
}

func TestChildren_ProcessWithChildren_ReturnsThoseThatRun(t *testing.T) {
	dir := t.TempDir()
	for pid, stat := range map[string]string{
		"5": "5 (control) S 1 5 5", "6": "6 (server) S 5 5 5", "7": "7 (a) 5 (b)) R 5 5 5", "8": "8 (server) Z 5 5 5",
		"9": "9 (other) S 55 5 5", "10": "10 (5) S 6 5 5", "11": "11", "self": "6 (server) S 5 5 5",
	} {
		if err := os.MkdirAll(filepath.Join(dir, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, pid, "stat"), []byte(stat), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "12"), 0o755); err != nil { // It ends after the directory was read.
		t.Fatal(err)
	}
	got, err := Children(dir, 5)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []int{6, 7}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Children(filepath.Join(dir, "none"), 5); err == nil {
		t.Error("no error without a /proc")
	}
}
