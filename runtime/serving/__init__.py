"""The server: `dragoman serve`, and the same on many machines.

Reading order: engine, which decodes requests in shared batches; models, which loads and replaces
bundles; service, which connects both to asyncio; apis, with a module for each protocol; app and
process.

triton runs the same engines in Triton Inference Server. ray runs replicas of the server, and
decodes large files in parallel, in the blocks of file_blocks.
"""
