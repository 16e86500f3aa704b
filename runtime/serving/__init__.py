"""A process that answers requests: `dragoman serve`; and what runs it on many machines.

Reading order: engine, where requests are decoded together; host, which loads and replaces
bundles; service, which joins both to asyncio; apis, a file for each protocol; app and process.

triton has the same engine answer requests of Triton, ray runs replicas of the app; blocks are files
of lines that are decoded part by part, wherever workers are.
"""
