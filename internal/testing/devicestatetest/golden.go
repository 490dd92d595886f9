// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/sim/engine"
)

// golden is the part of a saved machine beside its files.
type golden struct {
	Boots                   int
	Profile                 string
	GPUs                    []engine.GPU
	Daemons                 map[string]mpsd.Daemon
	External, ExternalModes map[string]bool
}

// In goldens, directory stands for the machine's directory, and noNewline marks a file without a newline at its end.
const directory, noNewline = "{machine}", " without a newline at its end"

// Save writes a simulated machine without processes to a file.
func (e *Env) Save(file, comment string) {
	e.T.Helper()
	s := e.Sim
	gpus := slices.Clone(s.State().GPUs)
	for i := range gpus {
		gpus[i].Meter = engine.Meter{} // It has the time of day.
	}
	data, err := json.MarshalIndent(golden{
		e.Boots, s.State().Profile.Name, gpus, s.daemons, s.External, s.ExternalModes,
	}, "", " ")
	e.Must(err)
	claims, err := json.Marshal(e.Claims) // Not indented: their parameters keep their bytes.
	e.Must(err)
	archive := &txtar.Archive{Comment: []byte(comment + "\n"), Files: []txtar.File{
		{Name: "machine", Data: append(data, '\n')}, {Name: "claims", Data: append(claims, '\n')},
	}}
	for _, name := range e.list(e.Dir) {
		if path := filepath.Join(e.Dir, name); path == e.BootFile || filepath.Base(path) == External {
			continue // New writes them.
		}
		data, err := os.ReadFile(filepath.Join(e.Dir, name))
		e.Must(err)
		text := strings.ReplaceAll(string(data), e.Dir, directory)
		if text != "" && !strings.HasSuffix(text, "\n") {
			name, text = name+noNewline, text+"\n"
		}
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(text)})
	}
	e.Must(os.MkdirAll(filepath.Dir(file), 0o755))
	e.Must(os.WriteFile(file, txtar.Format(archive), 0o644))
}

// Load returns the machine of a file that Save wrote, perhaps with an earlier form of records.
func Load(t testing.TB, file string) *Env {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(archive.Files[0].Data, &g); err != nil {
		t.Fatal(err)
	}
	e := NewSimulated(t, g.Profile)
	e.Must(json.Unmarshal(archive.Files[1].Data, &e.Claims))
	for e.Boots < g.Boots {
		e.NewBoot()
	}
	e.Sim.Change(func(s *engine.State) { s.GPUs = g.GPUs })
	e.Sim.External, e.Sim.ExternalModes = g.External, g.ExternalModes
	for name, d := range g.Daemons {
		e.Sim.daemons[name] = d
	}
	for _, f := range archive.Files[2:] {
		name, cut := strings.CutSuffix(f.Name, noNewline)
		text := strings.ReplaceAll(string(f.Data), directory, e.Dir)
		if cut {
			text = strings.TrimSuffix(text, "\n")
		}
		path := filepath.Join(e.Dir, name)
		e.Must(os.MkdirAll(filepath.Dir(path), 0o755))
		e.Must(os.WriteFile(path, []byte(text), 0o600))
	}
	return e
}
