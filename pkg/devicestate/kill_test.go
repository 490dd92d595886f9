// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"gpu-dra-driver/internal/boxtest"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/record"
)

// victimDir is set in the process that TestPrepare_ProcessKilled_LocksReleasedAndUndone starts and kills.
const victimDir = "DEVICESTATE_VICTIM_DIR"

// victim prepares claim a, and stops before the operation that the parent named. The parent kills it there.
func victim(t *testing.T, dir string) {
	e := devicestatetest.Attach(t, dir)
	label := host.Label(os.Getenv(victimDir + "_AT"))
	g := hosttest.NewGate(label)
	p, err := e.StartWith(g.Do)
	e.Must(err)
	e.SteppedClaim("a", "0")
	go func() {
		<-g.Reached
		fmt.Println("holding")
	}()
	_, err = p.Prepare(context.Background(), e.Claims["a"])
	t.Fatal("not killed:", err)
}

// startVictim starts a process that prepares claim a, and returns when it has stopped before an operation.
func startVictim(e *devicestatetest.Env, label host.Label) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^TestPrepare_ProcessKilled_LocksReleasedAndUndone$")
	cmd.Env = append(os.Environ(), victimDir+"="+e.Dir, victimDir+"_AT="+string(label))
	out, err := cmd.StdoutPipe()
	e.Must(err)
	e.Must(cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "holding" {
	}
	return cmd
}

func TestMain(m *testing.M) { boxtest.Main(m) }

func TestMain_Killed_LeavesNothing(t *testing.T) {
	boxtest.CheckKilled(t, func() { startVictim(devicestatetest.New(t), record.LabelIntent) })
}

// TestPrepare_ProcessKilled_LocksReleasedAndUndone runs Prepare for one GPU in two operating system processes, and kills
// the one that has the locks with SIGKILL.
func TestPrepare_ProcessKilled_LocksReleasedAndUndone(t *testing.T) {
	if dir := os.Getenv(victimDir); dir != "" {
		victim(t, dir)
		return
	}
	for _, label := range []host.Label{record.LabelIntent, "test.apply", "spec.write", record.LabelCommit} {
		t.Run(string(label), func(t *testing.T) {
			e := devicestatetest.New(t)
			cmd := startVictim(e, label)
			p := e.Start()
			e.Claim("b", "0")
			waiting := make(chan error, 1)
			go func() { _, err := p.Prepare(context.Background(), e.Claims["b"]); waiting <- err }()
			// Whether or not the call above waits for the lock yet, no Prepare may succeed before the kill.
			_, early := p.Prepare(briefly(t), e.Claims["b"])
			killed := cmd.Process.Kill()
			_ = cmd.Wait()
			e.Must(killed)
			if early == nil {
				t.Error("two processes prepared one GPU")
			}
			err := <-waiting
			findings, recoverErr := p.Recover(context.Background())
			e.Must(recoverErr)
			left := 1
			if label == record.LabelIntent {
				left = 0 // The process was killed before it created a file.
			}
			if len(findings) != left || left > 0 && (findings[0].Err != nil || findings[0].Claim.UID != "a") {
				t.Errorf("Recover after the kill: %+v", findings)
			}
			if err != nil { // It came before Recover, and the intent of the killed process still had the GPU.
				e.Prepare(p, "b")
			}
			e.CheckClean(p, "b")
		})
	}
}
