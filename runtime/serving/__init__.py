"""A process that answers requests: `dragoman serve`.

Reading order: engine, where requests are decoded together; hosting, which loads and replaces
bundles; service, which joins both to asyncio; apis, a file for each protocol; app and process.
"""
