"""Image models of others with continuous tokens: their modules under the published names, and their samplers' laws."""
