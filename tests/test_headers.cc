// No test of its own: what the precompiled headers of all test programs are made with.
