"""Programs to read and to run: `make demo` runs two of them, the tests run all."""
