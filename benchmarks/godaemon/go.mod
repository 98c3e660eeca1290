module godaemon

go 1.26
