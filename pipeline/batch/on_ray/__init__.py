"""``tvae batch --engine ray``: a job's items over the nodes of a Ray cluster.

One actor for each GPU, or for each node without any, takes whole items from one queue. The command that was started,
the driver, has the queue; it tells events, writes the manifest, and gives items again that were lost with an actor or
a node.

The other way, Ray Data's stages (read, then ``map_batches`` with an actor for each GPU, then write), would cost what a
job is to keep. Pixels and latents would pass through the object store, which pictures of all sizes and long clips fill,
where an actor's own threads hand them on in memory. A clip goes through a VAE in steps, each with the caches of the one
before it: to Ray Data it would be one row, held whole. A block that is lost is made again, all of its rows. And what
became of each item, and why, is what a stage does not tell. A prototype with 600 photos of 64x64 in 8 blocks, whose
actor was killed twice, computed 54 photos a second time, where an actor here loses the two or three that are at work;
when it had computed 103, none was written.

In the actor stands a process that is the same as that of a device of ``--devices`` (see
``tvae.pipeline.jobs.devices``): reading, computing and writing are the plain command's own code.
"""
