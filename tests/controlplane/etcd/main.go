// Command etcd is the etcd server, unchanged. It has a module of its own because etcd's
// go.mod carries replace directives, which `go install pkg@version` refuses.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
