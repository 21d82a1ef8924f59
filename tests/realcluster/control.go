package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// compactionTimeout bounds one compaction.
const compactionTimeout = 10 * time.Second

// command carries out one line of standard input:
//
//	kill NAME    end a component by SIGKILL, as a crash would
//	start NAME   start a component that was killed, on the same data and address
//	compact      make etcd forget all revisions but the newest
//	erase        kill etcd and kube-apiserver and remove etcd's data; "start" begins anew, with no object and low revisions
func (p *controlPlane) command(line string) error {
	verb, name, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch verb {
	case "compact":
		return p.compact()
	case "erase":
		return p.erase()
	case "kill", "start":
	default:
		return fmt.Errorf("unknown command %q: kill NAME, start NAME, compact or erase", verb)
	}
	c := p.components[name]
	if c == nil {
		return fmt.Errorf("unknown component %q", name)
	}
	if verb == "kill" {
		return p.kill(name)
	}
	if c.cmd != nil {
		return fmt.Errorf("%s runs already", name)
	}
	return p.start(name)
}

// compact asks etcd itself. An API server that runs goes on answering from its watch
// cache, which a restart empties.
func (p *controlPlane) compact() error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.etcdURL}, DialTimeout: compactionTimeout})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), compactionTimeout)
	defer cancel()
	newest, err := client.Get(ctx, "compaction", clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	_, err = client.Compact(ctx, newest.Header.Revision, clientv3.WithCompactPhysical())
	return err
}

func (p *controlPlane) erase() error {
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if c := p.components[name]; c != nil && c.cmd != nil {
			if err := p.kill(name); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(filepath.Join(p.home, "etcd"))
}
