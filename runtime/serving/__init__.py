"""The server: `dragoman serve`, on one machine or many.

Reading order: engine, which batches requests; models, which loads and replaces bundles; service,
which connects both to asyncio; apis, with a module for each protocol; app and process.

triton runs the same engines in Triton Inference Server. ray runs replicas of the server and
decodes large files in parallel, split into blocks by file_blocks.
"""
