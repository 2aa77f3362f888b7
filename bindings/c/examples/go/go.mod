module example.org/sluice-example

go 1.22
