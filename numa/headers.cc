// Nothing of its own: what the precompiled headers of all libraries are made with.
