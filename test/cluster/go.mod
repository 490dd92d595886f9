module gpu-dra-driver/test/cluster

go 1.26.0

require (
	github.com/google/go-containerregistry v0.22.1 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
